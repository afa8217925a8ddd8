//! Layers with a window: what they hold, what they cost, and what is gone.

use super::{append, mean_of_values, number, spec};
use plimsoll_attention::{KvDtype, KvLayout, KvValues};
use plimsoll_kvcache::{BlockTable, Error, KvLayerSpec, KvSpec, Sequence};
use plimsoll_memguard::{
    AttentionShape, Budget, ClosedForm, EstimateSettings, FeedForward, Kind, LayerShape, Ledger, Mixer, ModelShape,
    Parameters, Profile,
};

/// Gemma 3 270M: every sixth of 18 layers sees all, the others 512 keys; one KV head of 256.
fn gemma(max_chunk_rows: Option<usize>) -> KvSpec {
    let layout = KvLayout { kv_heads: 1, head_dim: 256, v_head_dim: 256, dtype: KvDtype::Bf16, values: KvValues::Own };
    let layer = |layer: usize| KvLayerSpec { layout, window: (layer % 6 != 5).then_some(512) }.into();
    KvSpec::new((0..18).map(layer).collect()).with_max_chunk_rows(max_chunk_rows)
}

/// Bytes of a block of one of its layers.
const GEMMA_BLOCK: u64 = 64 * 256 * 2 * 2;

fn sequence_of(spec: &KvSpec, max_tokens: usize) -> Sequence {
    let bytes = spec.bytes(max_tokens);
    Sequence::new(spec, max_tokens, Ledger::new(Budget::Bytes(bytes)).reserve(Kind::Kv, bytes).unwrap()).unwrap()
}

#[test]
fn a_long_gemma_prompt_holds_full_kv_for_3_layers_and_window_and_chunk_for_15() {
    let spec = gemma(Some(512));
    // A chunk of 512 rows sees 511 tokens before it: 1,023 tokens straddle 17 blocks.
    assert_eq!(spec.bytes(32_000), (3 * 500 + 15 * 17) * GEMMA_BLOCK);
    assert_eq!(spec.held_bytes(32_000), (3 * 500 + 15 * 8) * GEMMA_BLOCK);
    assert_eq!(gemma(None).bytes(32_000), 18 * 500 * GEMMA_BLOCK);
    assert_eq!(spec.bytes(640), 18 * 10 * GEMMA_BLOCK, "shorter than window and chunk: whole");

    let (ledger, bytes) = (Ledger::new(Budget::Bytes(spec.bytes(32_000))), spec.bytes(32_000));
    let mut sequence = Sequence::new(&spec, 32_000, ledger.reserve(Kind::Kv, bytes).unwrap()).unwrap();
    let rows = vec![0.25; 512 * 256];
    let mut peak_bytes = 0;
    while sequence.len() < 32_000 {
        let (start, rows_now) = (sequence.len(), (32_000 - sequence.len()).min(512));
        let grown_bytes = sequence.bytes() + sequence.growth_bytes(rows_now);
        for layer in 0..18 {
            let rows = &rows[..rows_now * 256];
            sequence.append(layer, start, rows, rows, rows_now).unwrap();
        }
        assert_eq!(sequence.bytes(), grown_bytes, "{rows_now} rows from {start}");
        peak_bytes = peak_bytes.max(sequence.bytes());
        sequence.commit();
        assert_eq!(sequence.bytes(), spec.held_bytes(sequence.len()), "after {} tokens", sequence.len());
    }
    // The chunks start at borders of blocks, so that one block less is straddled; the last one has 256 rows.
    assert_eq!(peak_bytes, (3 * 496 + 15 * 16) * GEMMA_BLOCK);
    assert_eq!(sequence.peak_mapped_bytes(), peak_bytes, "every slab is a mapping");
    assert_eq!(sequence.mapped_bytes(), sequence.bytes(), "those that are left too");
    assert_eq!(ledger.usage().kv_bytes, bytes, "what a window let go pays for its next blocks");
    let mut table = BlockTable::new();
    let seen = sequence.with_view(0, 32_000, &mut table, |view| (view.first_block(), view.kv_len())).unwrap();
    assert_eq!(seen, ((32_001 - 512) / 64, 32_000));
    drop(sequence);
    assert_eq!(ledger.usage().kv_bytes, 0);
}

#[test]
fn kv_of_a_spec_and_of_the_closed_form_are_one_number() {
    for chunk_rows in [1, 7, 64, 512, 2048] {
        let layers = (0..18).map(|layer| LayerShape {
            mixer: Mixer::Attention(AttentionShape {
                window: (layer % 6 != 5).then_some(512),
                ..AttentionShape::new(4, 1, 256)
            }),
            feed_forward: FeedForward::dense(2048),
            norms: 4,
            extra: Parameters::default(),
        });
        let shape = ModelShape {
            hidden_size: 640,
            vocab_size: 262_144,
            tie_word_embeddings: true,
            residual_streams: 1,
            layers: layers.collect(),
            extra: Parameters::default(),
        };
        let form = ClosedForm::new(shape, EstimateSettings { chunk_rows, ..EstimateSettings::default() });
        let spec = gemma(Some(chunk_rows));
        for tokens in [0, 1, 63, 64, 65, 512, 575, 576, 577, 1024, 2000, 4096, 32_000] {
            assert_eq!(spec.bytes(tokens), form.kv_bytes(tokens), "{tokens} tokens in chunks of {chunk_rows}");
        }
    }
}

#[test]
fn every_chunking_stays_within_the_price_and_reads_what_it_wrote() {
    for (window, max_rows) in [(1, 3), (5, 1), (16, 100), (64, 64), (65, 63), (70, 7), (128, 200)] {
        let layout = KvLayout { kv_heads: 1, head_dim: 5, v_head_dim: 3, dtype: KvDtype::F32, values: KvValues::Own };
        let spec =
            KvSpec::new(vec![KvLayerSpec { layout, window: Some(window) }.into()]).with_max_chunk_rows(Some(max_rows));
        let mut sequence = sequence_of(&spec, 500);
        let mut table = BlockTable::new();
        let mut seed = window;
        while sequence.len() < 500 {
            let start = sequence.len();
            seed = (seed * 31 + 17) % 1009;
            let rows = (1 + seed % max_rows).min(500 - start);
            let values = |width: usize| -> Vec<f32> {
                (start..start + rows).flat_map(|token| (0..width).map(move |i| number(1, token, 0, i))).collect()
            };
            sequence.append(0, start, &values(5), &values(3), rows).unwrap();
            let end = start + rows;
            assert!(sequence.bytes() <= spec.bytes(end), "window {window}, rows {rows} from {start}");
            let first = sequence.with_view(0, end, &mut table, |view| view.first_block() * 64).unwrap();
            assert!(first <= (start + 1).saturating_sub(window), "window {window}: row {start} lacks keys");
            sequence.commit();
            assert_eq!(sequence.bytes(), spec.held_bytes(end), "window {window}");
        }
    }
}

#[test]
fn what_a_window_has_dropped_must_go_through_the_model_again() {
    let spec = spec();
    let mut sequence = sequence_of(&spec, 400);
    for layer in 0..2 {
        append(&mut sequence, layer, 0, 300, 0).unwrap();
    }
    sequence.truncate(20).unwrap();
    for layer in 0..2 {
        append(&mut sequence, layer, 20, 280, 0).unwrap();
    }
    sequence.commit();
    // Row 300 sees 285..; the block of 256 is the first that stays.
    let refused = Error::NeedsPrefill { layer: 1, tokens: 200, len_tokens: 300, from: 0 };
    assert_eq!(sequence.truncate(200), Err(refused));
    assert_eq!(append(&mut sequence, 1, 200, 1, 0), Err(refused));
    assert_eq!((sequence.layer_len(0), sequence.layer_len(1)), (300, 300), "nothing was forgotten");
    // Row 271 sees 256.. and no more.
    let refused = Error::NeedsPrefill { layer: 1, tokens: 270, len_tokens: 300, from: 0 };
    assert_eq!(sequence.truncate(270), Err(refused));
    sequence.truncate(271).unwrap();
    append(&mut sequence, 1, 271, 20, 1).unwrap();
    append(&mut sequence, 0, 271, 20, 1).unwrap();
    sequence.commit();
    sequence.truncate(0).unwrap();
    assert_eq!((sequence.len(), sequence.bytes()), (0, 0));
    append(&mut sequence, 1, 0, 70, 2).unwrap();
    let mean = mean_of_values(&sequence, 1, 70, &mut BlockTable::new());
    let want = (0..70).map(|token| number(1, token, 2, 0)).sum::<f32>() / 70.0;
    assert!((mean[0] - want).abs() < 1e-3);
}

#[test]
fn a_layer_that_starts_over_alone_takes_its_group_along() {
    let window = KvLayerSpec { window: Some(16), ..super::plain_model::WINDOWED };
    let spec = KvSpec::new(vec![window.into(), window.into()]);
    let mut sequence = sequence_of(&spec, 200);
    let (k, v) = (vec![1.0; 200 * 5], vec![1.0; 200 * 3]);
    for layer in 0..2 {
        sequence.append(layer, 0, &k, &v, 200).unwrap();
    }
    sequence.commit();
    sequence.append(0, 0, &k[..50], &v[..30], 10).unwrap();
    assert_eq!((sequence.layer_len(0), sequence.layer_len(1), sequence.bytes()), (10, 0, spec.bytes(10)));
}

#[test]
fn more_rows_than_a_window_was_priced_for_are_refused() {
    let spec = spec().with_max_chunk_rows(Some(32));
    let mut sequence = sequence_of(&spec, 100);
    append(&mut sequence, 0, 0, 33, 0).unwrap();
    assert_eq!(append(&mut sequence, 1, 0, 33, 0), Err(Error::ChunkRows { layer: 1, rows: 33, max_chunk_rows: 32 }));
    append(&mut sequence, 1, 0, 30, 0).unwrap();
    let refused = Error::ChunkRows { layer: 1, rows: 33, max_chunk_rows: 32 };
    assert_eq!(append(&mut sequence, 1, 30, 3, 0), Err(refused), "without a commit in between");
    append(&mut sequence, 1, 30, 2, 0).unwrap();
    sequence.truncate(32).unwrap();
    sequence.commit();
    append(&mut sequence, 1, 32, 32, 0).unwrap();
}
