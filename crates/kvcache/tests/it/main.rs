//! The public API of the cache.
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use plimsoll_attention::{AttnParams, AttnShape, Isa, KV_BLOCK_TOKENS, KvValues, Route, Settings};
use plimsoll_kvcache::{BlockTable, Error, KvSpec, LayerSpec, RecurrentSpec, Sequence};
use plimsoll_memguard::{Budget, Kind, Ledger};
use proptest::prelude::*;

mod disk;
mod forks;
mod latent;
mod plain_model;
mod prefix;
mod schedules;
mod snapshots;
mod windows;

use plain_model::{FULL, WINDOWED};

/// Two layers of different shapes.
fn spec() -> KvSpec {
    KvSpec::new(vec![FULL.into(), WINDOWED.into()])
}

fn sequence(max_tokens: usize) -> Sequence {
    let spec = spec();
    let ledger = Ledger::new(Budget::Bytes(spec.bytes(max_tokens)));
    Sequence::new(&spec, max_tokens, ledger.reserve(Kind::Kv, spec.bytes(max_tokens)).unwrap()).unwrap()
}

/// The number stored at this place; exact in bf16.
fn number(layer: usize, token: usize, version: usize, index: usize) -> f32 {
    ((layer * 7 + token * 5 + version * 3 + index) % 127) as f32
}

fn rows(layer: usize, start: usize, rows: usize, version: usize) -> (Vec<f32>, Vec<f32>) {
    let layout = [FULL, WINDOWED][layer].layout;
    let make = |width: usize| {
        (start..start + rows).flat_map(|token| (0..width).map(move |i| number(layer, token, version, i))).collect()
    };
    (make(layout.kv_heads * layout.head_dim), make(layout.kv_heads * layout.v_head_dim))
}

fn append(sequence: &mut Sequence, layer: usize, start: usize, count: usize, version: usize) -> Result<(), Error> {
    let (k, v) = rows(layer, start, count, version);
    sequence.append(layer, start, &k, &v, count)
}

/// Attention of one query that likes all keys alike: reads every stored value through the kernels.
fn mean_of_values(sequence: &Sequence, layer: usize, kv_len: usize, table: &mut BlockTable) -> Vec<f32> {
    let layout = [FULL, WINDOWED][layer].layout;
    let shape = AttnShape {
        rows: 1,
        kv_len,
        heads: layout.kv_heads,
        kv_heads: layout.kv_heads,
        head_dim: layout.head_dim,
        v_head_dim: layout.v_head_dim,
        kv_dtype: layout.dtype,
        kv_values: KvValues::Own,
        window: None,
    };
    let route = Route::for_shape(
        &shape,
        &Settings { route: Some(plimsoll_attention::RouteKind::Reference), isa: Isa::Scalar, threads: 1 },
    );
    let params = AttnParams { scale: 1.0, window: None, softcap: None, sinks: None };
    let q = vec![0.0; layout.kv_heads * layout.head_dim];
    let mut out = vec![0.0; layout.kv_heads * layout.v_head_dim];
    sequence
        .with_view(layer, kv_len, table, |view| route.run(&q, view, kv_len - 1, &params, &mut out, &mut []).unwrap())
        .unwrap();
    out
}

#[test]
fn spec_counts_whole_blocks_of_every_layer() {
    let spec = spec();
    // bf16: 2 heads * (6 + 4) * 64 * 2 bytes; f32: 1 head * (5 + 3) * 64 * 4 bytes.
    assert_eq!(spec.block_bytes(), 2560 + 2048);
    assert_eq!([spec.bytes(0), spec.bytes(1), spec.bytes(64), spec.bytes(65)], [0, 4608, 4608, 9216]);
    assert_eq!(KvSpec::default().bytes(1000), 0);
}

#[test]
fn blocks_come_with_tokens_and_go_with_truncation() {
    let spec = spec();
    let mut sequence = sequence(200);
    assert_eq!((sequence.bytes(), sequence.len(), sequence.is_empty()), (0, 0, true));
    for (start, count) in [(0, 64), (64, 1), (65, 100)] {
        for layer in 0..2 {
            append(&mut sequence, layer, start, count, 0).unwrap();
        }
        assert_eq!(sequence.len(), start + count);
        assert_eq!(sequence.bytes(), spec.bytes(start + count));
    }
    for tokens in [500, 165, 129, 128, 64, 1, 0] {
        sequence.truncate(tokens).unwrap();
        assert_eq!(sequence.len(), tokens.min(165));
        assert_eq!(sequence.bytes(), spec.bytes(tokens.min(165)));
    }
}

#[test]
fn layers_may_differ_inside_a_pass() {
    let mut sequence = sequence(100);
    append(&mut sequence, 0, 0, 10, 0).unwrap();
    assert_eq!((sequence.layer_len(0), sequence.layer_len(1), sequence.len()), (10, 0, 0));
}

#[test]
fn wrong_calls_are_refused_with_numbers_and_change_nothing() {
    let mut sequence = sequence(100);
    append(&mut sequence, 1, 0, 90, 0).unwrap();
    let bytes = sequence.bytes();
    assert_eq!(append(&mut sequence, 1, 91, 1, 0), Err(Error::Gap { layer: 1, start: 91, len_tokens: 90 }));
    assert_eq!(
        append(&mut sequence, 1, 90, 11, 0),
        Err(Error::Capacity { layer: 1, end_tokens: 101, max_tokens: 100 })
    );
    assert_eq!(sequence.append(2, 0, &[], &[], 0), Err(Error::NoSuchLayer { layer: 2, layers: 2 }));
    assert_eq!(
        sequence.append(1, 90, &[0.0; 5], &[0.0; 4], 1),
        Err(Error::SliceLength { slice: "v", rows: 1, expected: 3, actual: 4 })
    );
    let mut table = BlockTable::new();
    assert_eq!(
        sequence.with_view(1, 91, &mut table, |_| ()),
        Err(Error::PastEnd { layer: 1, kv_len: 91, len_tokens: 90 })
    );
    assert_eq!((sequence.bytes(), sequence.layer_len(1)), (bytes, 90));
    append(&mut sequence, 1, 90, 10, 0).unwrap();
}

#[test]
fn a_sequence_needs_a_reservation_for_its_longest_length() {
    let spec = spec();
    let ledger = Ledger::new(Budget::Bytes(1 << 20));
    let reservation = ledger.reserve(Kind::Kv, spec.bytes(64)).unwrap();
    let refused = Sequence::new(&spec, 65, reservation).unwrap_err();
    assert_eq!(refused, Error::Reservation { max_tokens: 65, needed_bytes: 9216, reserved_bytes: 4608 });
    assert_eq!(ledger.usage().kv_bytes, 0, "the refused reservation went back");
    let sequence = Sequence::new(&spec, 64, ledger.reserve(Kind::Kv, spec.bytes(64)).unwrap()).unwrap();
    assert_eq!(ledger.usage().kv_bytes, sequence.reserved_bytes());
    drop(sequence);
    assert_eq!(ledger.usage().kv_bytes, 0);
}

#[test]
fn blocks_stay_where_they_are() {
    let mut sequence = sequence(1000);
    let mut table = BlockTable::new();
    append(&mut sequence, 0, 0, 70, 0).unwrap();
    let first = mean_of_values(&sequence, 0, 70, &mut table);
    for start in 70..300 {
        append(&mut sequence, 0, start, 1, 0).unwrap();
    }
    assert_eq!(mean_of_values(&sequence, 0, 70, &mut table), first);
}

#[test]
fn a_table_allocates_once_for_the_longest_view() {
    let mut sequence = sequence(1000);
    append(&mut sequence, 0, 0, 1000, 0).unwrap();
    let mut table = BlockTable::new();
    sequence.with_view(0, 1000, &mut table, |_| ()).unwrap();
    let capacity = table.capacity();
    assert!(capacity >= 1000usize.div_ceil(KV_BLOCK_TOKENS));
    for kv_len in [0, 1, 64, 999, 1000] {
        assert_eq!(sequence.with_view(0, kv_len, &mut table, |view| view.kv_len()), Ok(kv_len));
        assert_eq!(table.capacity(), capacity);
    }
}

/// KV in layer 1 only: layers 0 and 3 recur, layer 2 holds nothing.
fn hybrid() -> KvSpec {
    let recurrent = |elements| LayerSpec::Recurrent(RecurrentSpec { elements });
    KvSpec::new(vec![recurrent(5), FULL.into(), LayerSpec::Stateless, recurrent(32)])
}

fn hybrid_sequence(spec: &KvSpec, max_tokens: usize) -> Sequence {
    let bytes = spec.bytes(max_tokens);
    Sequence::new(spec, max_tokens, Ledger::new(Budget::Bytes(bytes)).reserve(Kind::Kv, bytes).unwrap()).unwrap()
}

/// Every recurrent layer counts tokens in its first element; layer 1 gets their rows.
fn pass(sequence: &mut Sequence, start: usize, count: usize) -> Result<(), Error> {
    for layer in [0, 3] {
        sequence.advance(layer, start, count, |step| {
            step.after.copy_from_slice(step.before);
            step.after[0] += step.rows.len() as f32;
        })?;
    }
    let (k, v) = rows(0, start, count, 0);
    sequence.append(1, start, &k, &v, count)
}

fn counted(sequence: &mut Sequence, layer: usize) -> f32 {
    let len = sequence.layer_len(layer);
    let mut count = 0.0;
    sequence.advance(layer, len, 0, |step| count = step.before[0]).unwrap();
    count
}

#[test]
fn recurrent_state_costs_the_same_at_every_length() {
    let spec = hybrid();
    // 5 and 32 elements in whole cache lines, twice.
    assert_eq!((spec.recurrent_bytes(), spec.block_bytes()), (2 * (64 + 128), FULL.block_bytes()));
    assert_eq!([0, 1, 65].map(|tokens| spec.bytes(tokens) - 384), [0, FULL.block_bytes(), 2 * FULL.block_bytes()]);
    let mut sequence = hybrid_sequence(&spec, 100);
    assert_eq!((sequence.bytes(), sequence.len()), (384, 0));
    for (start, count) in [(0, 3), (3, 62), (65, 1)] {
        pass(&mut sequence, start, count).unwrap();
        sequence.commit();
        assert_eq!((sequence.len(), sequence.bytes()), (start + count, spec.bytes(start + count)));
    }
    assert_eq!([counted(&mut sequence, 0), counted(&mut sequence, 3)], [66.0; 2]);
}

#[test]
fn a_pass_that_is_not_committed_leaves_every_state_as_it_was() {
    let spec = hybrid();
    let mut sequence = hybrid_sequence(&spec, 100);
    pass(&mut sequence, 0, 10).unwrap();
    sequence.commit();
    pass(&mut sequence, 10, 60).unwrap();
    assert_eq!((sequence.len(), sequence.layer_len(1), sequence.layer_len(3)), (10, 70, 10));
    sequence.truncate(10).unwrap();
    assert_eq!((sequence.len(), sequence.bytes()), (10, spec.bytes(10)));
    assert_eq!([counted(&mut sequence, 0), counted(&mut sequence, 3)], [10.0; 2]);
    // A commit without a pass changes nothing.
    sequence.truncate(10).unwrap();
    sequence.commit();
    assert_eq!((counted(&mut sequence, 0), sequence.len()), (10.0, 10));
}

#[test]
fn recurrent_state_goes_back_to_the_start_or_nowhere() {
    let mut sequence = hybrid_sequence(&hybrid(), 100);
    pass(&mut sequence, 0, 10).unwrap();
    sequence.commit();
    let refused = Error::NeedsPrefill { layer: 0, tokens: 4, len_tokens: 10, from: 0 };
    assert_eq!(sequence.truncate(4), Err(refused));
    assert_eq!(sequence.advance(0, 4, 1, |_| ()).err(), Some(refused));
    assert_eq!((sequence.len(), sequence.layer_len(1)), (10, 10), "nothing was forgotten");
    assert_eq!(sequence.advance(3, 11, 1, |_| ()).err(), Some(Error::Gap { layer: 3, start: 11, len_tokens: 10 }));
    let capacity = Error::Capacity { layer: 3, end_tokens: 101, max_tokens: 100 };
    assert_eq!(sequence.advance(3, 10, 91, |_| ()).err(), Some(capacity));
    sequence.truncate(10).unwrap();
    sequence.truncate(11).unwrap();
    assert_eq!(sequence.len(), 10);
    sequence.truncate(0).unwrap();
    assert_eq!((sequence.len(), counted(&mut sequence, 0)), (0, 0.0));
    // A pass from 0 forgets by itself.
    pass(&mut sequence, 0, 10).unwrap();
    sequence.commit();
    pass(&mut sequence, 0, 3).unwrap();
    sequence.commit();
    assert_eq!((sequence.len(), counted(&mut sequence, 3)), (3, 3.0));
}

#[test]
fn a_layer_is_asked_only_for_what_it_holds() {
    let mut sequence = hybrid_sequence(&hybrid(), 100);
    let kind = |layer, expected, found| Error::LayerKind { layer, expected, found };
    assert_eq!(sequence.append(0, 0, &[], &[], 0), Err(kind(0, "keys and values", "recurrent state")));
    assert_eq!(sequence.advance(1, 0, 1, |_| ()).err(), Some(kind(1, "recurrent state", "keys and values")));
    assert_eq!(sequence.advance(2, 0, 1, |_| ()).err(), Some(kind(2, "recurrent state", "nothing")));
    assert_eq!(sequence.advance(4, 0, 1, |_| ()).err(), Some(Error::NoSuchLayer { layer: 4, layers: 4 }));
    let mut table = BlockTable::new();
    let view = sequence.with_view(3, 0, &mut table, |_| ());
    assert_eq!(view, Err(kind(3, "keys and values", "recurrent state")));
}

#[test]
fn a_model_without_kv_has_the_length_of_its_states() {
    let spec = KvSpec::new(vec![LayerSpec::Stateless, RecurrentSpec { elements: 4 }.into()]);
    let mut sequence = hybrid_sequence(&spec, 10);
    sequence.advance(1, 0, 7, |step| step.after.fill(0.0)).unwrap();
    assert_eq!(sequence.len(), 0, "not committed yet");
    sequence.commit();
    assert_eq!((sequence.len(), sequence.layer_len(0), sequence.layer_len(1)), (7, 0, 7));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A plain list of token versions is the model.
    #[test]
    fn appends_and_truncations_keep_the_last_version_of_each_token(
        steps in prop::collection::vec((0..2usize, any::<bool>(), 0..100usize, 0..90usize), 1..12)
    ) {
        let mut sequence = sequence(300);
        let mut table = BlockTable::new();
        let mut model = [Vec::new(), Vec::new()];
        for (version, &(layer, truncates, back, count)) in steps.iter().enumerate() {
            if truncates {
                let tokens = model[layer].len().saturating_sub(back);
                sequence.truncate(tokens).unwrap();
                model.iter_mut().for_each(|layer| layer.truncate(tokens));
            } else {
                let start = model[layer].len().saturating_sub(back);
                let result = append(&mut sequence, layer, start, count, version);
                if start + count > 300 {
                    prop_assert!(result.is_err(), "{} tokens", start + count);
                } else {
                    result.unwrap();
                    model[layer].truncate(start);
                    model[layer].resize(start + count, version);
                }
            }
            for (layer, tokens) in model.iter().enumerate() {
                prop_assert_eq!(sequence.layer_len(layer), tokens.len());
                if tokens.is_empty() {
                    continue;
                }
                for (i, mean) in mean_of_values(&sequence, layer, tokens.len(), &mut table).into_iter().enumerate() {
                    let sum: f32 = tokens.iter().enumerate().map(|(token, &v)| number(layer, token, v, i)).sum();
                    let want = sum / tokens.len() as f32;
                    prop_assert!((mean - want).abs() < 1e-2, "layer {}: {} is not {}", layer, mean, want);
                }
            }
            let blocks: u64 = model.iter().zip([FULL, WINDOWED]).map(|(tokens, layer)| tokens.len().div_ceil(64) as u64 * layer.block_bytes()).sum();
            prop_assert_eq!(sequence.bytes(), blocks);
        }
    }
}
