//! Sequences of plain numbers in place of a model's: what a token leaves follows from the ids up to it.

use plimsoll_attention::{AttnParams, AttnShape, Isa, KvDtype, KvLayout, KvValues, KvView, Route, RouteKind, Settings};
use plimsoll_kvcache::{
    BlockTable, CacheIdentity, Error, KvLayerSpec, KvSpec, LayerSpec, PrefixCache, RecurrentSpec, Sequence, Snapshots,
    StateStep,
};
use plimsoll_memguard::{Budget, Kind, Ledger};
use std::num::NonZeroUsize;

pub(crate) const FULL: KvLayerSpec = KvLayerSpec {
    layout: KvLayout { kv_heads: 2, head_dim: 6, v_head_dim: 4, dtype: KvDtype::Bf16, values: KvValues::Own },
    window: None,
};
pub(crate) const WINDOWED: KvLayerSpec = KvLayerSpec {
    layout: KvLayout { kv_heads: 1, head_dim: 5, v_head_dim: 3, dtype: KvDtype::F32, values: KvValues::Own },
    window: Some(16),
};

pub(crate) const IDENTITY: CacheIdentity = CacheIdentity { model: [7; 32], contract: 1 };
pub(crate) fn window(window: usize) -> LayerSpec {
    KvLayerSpec { window: Some(window), ..WINDOWED }.into()
}

pub(crate) fn windowed() -> KvSpec {
    KvSpec::new(vec![FULL.into(), window(100), FULL.into()]).with_max_chunk_rows(Some(64))
}

pub(crate) fn hybrid(every: usize) -> KvSpec {
    let [every_blocks, keep] = [every, 4].map(|count| NonZeroUsize::new(count).unwrap());
    let state = LayerSpec::Recurrent(RecurrentSpec { elements: 20 });
    KvSpec::new(vec![state, FULL.into(), LayerSpec::Stateless]).with_snapshots(Some(Snapshots { every_blocks, keep }))
}

pub(crate) fn empty(ledger: &Ledger, spec: &KvSpec, max_tokens: usize) -> Sequence {
    let reservation = ledger.reserve(Kind::Kv, spec.bytes(max_tokens)).unwrap();
    Sequence::new(spec, max_tokens, reservation).unwrap()
}

pub(crate) fn ids(count: usize, version: u32) -> Vec<u32> {
    (0..count).map(|i| u32::try_from(i).unwrap() * 31 + 7 * version).collect()
}

/// What a token leaves in a layer; exact in bf16.
fn value(seed: usize, i: usize) -> f32 {
    ((seed * 5 + i * 3) % 251) as f32
}

/// Runs a chunk as a model would: what is written follows from the tokens before it alone.
pub(crate) fn try_run(sequence: &mut Sequence, tokens: &[u32], rows: usize) -> Result<(), Error> {
    let start = sequence.len();
    let mut hash = 1u32;
    let seeds = tokens[..start + rows].iter().map(|id| {
        hash = (hash * 31 + id) % 8191;
        hash as usize
    });
    let seeds: Vec<usize> = seeds.skip(start).collect();
    let spec = sequence.spec().clone();
    for (layer, kind) in spec.layers.iter().enumerate() {
        match kind {
            LayerSpec::Kv(KvLayerSpec { layout, .. }) => {
                let make = |width: usize| -> Vec<f32> {
                    seeds.iter().flat_map(|&seed| (0..width).map(move |i| value(seed + layer, i))).collect()
                };
                let (k, v) = (make(layout.k_row_elements()), make(layout.v_row_elements()));
                sequence.append(layer, start, &k, &v, rows)?;
            }
            LayerSpec::Recurrent(_) => {
                sequence.advance(layer, start, rows, |StateStep { rows, before, after }| {
                    for (i, (after, before)) in after.iter_mut().zip(before).enumerate() {
                        *after = seeds[rows.clone()].iter().fold(*before, |state, &seed| state * 0.5 + value(seed, i));
                    }
                })?;
            }
            LayerSpec::Stateless => {}
        }
    }
    sequence.commit();
    Ok(())
}

pub(crate) fn run(sequence: &mut Sequence, tokens: &[u32], rows: usize) {
    try_run(sequence, tokens, rows).unwrap();
}

/// The same tokens in chunks of 64, without a cache.
pub(crate) fn cold(spec: &KvSpec, tokens: &[u32]) -> Vec<u32> {
    let mut sequence = empty(&Ledger::new(Budget::Unlimited), spec, tokens.len().max(1));
    while sequence.len() < tokens.len() {
        let rows = (tokens.len() - sequence.len()).min(64);
        run(&mut sequence, tokens, rows);
    }
    content(&mut sequence)
}

/// All that a next row would read: the bits of every block of every layer, and the states.
pub(crate) fn content(sequence: &mut Sequence) -> Vec<u32> {
    let (len, spec, mut table, mut all) = (sequence.len(), sequence.spec().clone(), BlockTable::new(), Vec::new());
    for (layer, kind) in spec.layers.iter().enumerate() {
        match kind {
            LayerSpec::Kv(kv) => all.extend(read(sequence, layer, kv, len, &mut table)),
            LayerSpec::Recurrent(_) => {
                let see = |step: StateStep<'_>| all.extend(step.before.iter().map(|value| value.to_bits()));
                sequence.advance(layer, len, 0, see).unwrap();
            }
            LayerSpec::Stateless => {}
        }
    }
    sequence.truncate(len).unwrap();
    all
}

/// Runs the tokens from the hit on, in chunks of 64, publishing each; the tokens that were found.
pub(crate) fn prefill(cache: &PrefixCache, sequence: &mut Sequence, tokens: &[u32]) -> usize {
    let cached = cache.restore(sequence, tokens).unwrap();
    assert_eq!(cached, sequence.len());
    while sequence.len() < tokens.len() {
        run(sequence, tokens, (tokens.len() - sequence.len()).min(64));
        cache.publish(sequence, &tokens[..sequence.len()]).unwrap();
    }
    cached
}

/// The bits of the mean of all values that one more row of a layer sees, and those of the mean of values weighted by the keys.
fn read(sequence: &Sequence, layer: usize, kv: &KvLayerSpec, kv_len: usize, table: &mut BlockTable) -> Vec<u32> {
    let KvLayerSpec { layout, window } = *kv;
    // The next row is one further: it does not see the first key that the last one saw.
    let window = window.map(|window| window - 1);
    if kv_len == 0 {
        return Vec::new();
    }
    let shape = AttnShape {
        rows: 1,
        kv_len,
        heads: layout.kv_heads,
        kv_heads: layout.kv_heads,
        head_dim: layout.head_dim,
        v_head_dim: layout.v_head_dim,
        kv_dtype: layout.dtype,
        kv_values: layout.values,
        window,
    };
    let settings = Settings { route: Some(RouteKind::Reference), isa: Isa::Scalar, threads: 1 };
    let (route, mut all) = (Route::for_shape(&shape, &settings), Vec::new());
    for scale in [0.0, 0.001] {
        let params = AttnParams { scale, window, softcap: None, sinks: None };
        let q = vec![1.0; layout.kv_heads * layout.head_dim];
        let mut out = vec![0.0; layout.kv_heads * layout.v_head_dim];
        let run = |view: &KvView<'_>| route.run(&q, view, kv_len - 1, &params, &mut out, &mut []);
        sequence.with_view(layer, kv_len, table, run).unwrap().unwrap();
        all.extend(out.iter().map(|value| value.to_bits()));
    }
    all
}
