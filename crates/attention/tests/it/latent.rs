//! Values that are in the keys: the results are those of the same values in blocks of their own.

use plimsoll_attention::reference::{Dims, attention_f32};
use plimsoll_attention::{AttnShape, Error, Isa, KV_BLOCK_TOKENS, KvBlock, KvDtype, KvLayout, KvValues, KvView, Route};
use plimsoll_attention::{RouteKind, Settings};
use proptest::prelude::*;

use crate::oracle::stored;
use crate::support::{Case, Data, Line, aligned, assert_same_bits, best, cases, plain, tiled};

/// A case whose values are no longer than its keys.
fn narrowed(case: Case) -> Case {
    Case { v_head_dim: case.v_head_dim.min(case.head_dim), ..case }
}

/// The case's data, with the first elements of each key as its value.
fn data(case: &Case) -> Data {
    let mut data = case.data();
    data.v = data.k.chunks_exact(case.head_dim).flat_map(|key| &key[..case.v_head_dim]).copied().collect();
    data
}

fn layout(case: &Case) -> KvLayout {
    KvLayout { values: KvValues::InKeys, ..case.layout() }
}

fn shape(case: &Case, rows: usize, kv_len: usize) -> AttnShape {
    AttnShape { rows, kv_len, kv_values: KvValues::InKeys, ..case.shape() }
}

/// Blocks of keys with the first `kv_len` tokens; every other byte is `stale`.
fn blocks(case: &Case, data: &Data, kv_len: usize, stale: u8) -> Vec<Vec<Line>> {
    let layout = layout(case);
    let blocks =
        data.k[..kv_len * layout.k_row_elements()].chunks(KV_BLOCK_TOKENS * layout.k_row_elements()).map(|k| {
            let mut block = aligned(layout.k_block_bytes(), stale);
            layout.write_rows(
                bytemuck::cast_slice_mut(&mut block),
                &mut [],
                0,
                k,
                &[],
                k.len() / layout.k_row_elements(),
            );
            block
        });
    blocks.collect()
}

/// Runs rows `from .. from + rows` over keys alone, in scratch of just the bytes that are stated.
fn run_in(case: &Case, data: &Data, (from, rows, kv_len): (usize, usize, usize), how: Settings, stale: u8) -> Vec<f32> {
    let blocks = blocks(case, data, kv_len, stale);
    let table: Vec<KvBlock<'_>> = blocks.iter().map(|k| KvBlock { k: bytemuck::cast_slice(k), v: &[] }).collect();
    let view = KvView::new(layout(case), &table, kv_len).unwrap();
    let shape = shape(case, rows, kv_len);
    let route = Route::for_shape(&shape, &how);
    let mut scratch = aligned(usize::try_from(route.workspace_bytes(&shape)).unwrap(), stale);
    let (q_row, out_row) = (case.heads() * case.head_dim, case.heads() * case.v_head_dim);
    let mut out = vec![f32::NAN; rows * out_row];
    let (q, params) = (&data.q[from * q_row..][..rows * q_row], case.params(data));
    route.run(q, &view, case.start + from, &params, &mut out, bytemuck::cast_slice_mut(&mut scratch)).unwrap();
    out
}

fn run(case: &Case, data: &Data, how: Settings) -> Vec<f32> {
    run_in(case, data, (0, case.rows, case.kv_len()), how, 0xff)
}

/// One KV head as a model has it.
fn latent_case(dtype: KvDtype, group_size: usize, (rank, rope): (usize, usize), start: usize, rows: usize) -> Case {
    let layout = KvLayout::latent(rank, rope, dtype);
    let KvLayout { kv_heads, head_dim, v_head_dim, .. } = layout;
    let (window, softcap, sinks, seed) = (None, None, false, 3);
    Case { dtype, kv_heads, group_size, head_dim, v_head_dim, start, rows, window, softcap, sinks, seed }
}

/// Dimensions of latents, real ones and odd ones, of few and many query heads, with starts and rows around the borders of blocks.
fn latents() -> impl Strategy<Value = Case> {
    let dims = prop_oneof![
        Just((512, 64)),
        Just((24, 8)),
        Just((23, 8)),
        Just((24, 7)),
        Just((17, 4)),
        Just((256, 32)),
        Just((1, 1)),
        Just((5, 0)),
        (1..=200usize, 0..=70usize)
    ];
    let dtype = prop_oneof![Just(KvDtype::F32), Just(KvDtype::F16), Just(KvDtype::Bf16)];
    let rows = prop_oneof![Just(1), 2..8usize, 1..=150usize];
    let start = prop_oneof![0..200usize, Just(63), Just(64)];
    let window = prop::option::of(1..150usize);
    (dtype, prop_oneof![1..=4usize, Just(16), Just(128)], dims, start, rows, window, any::<bool>(), 0..u64::MAX / 2)
        .prop_map(|(dtype, heads, (rank, rope), start, rows, window, sinks, seed)| {
            let rows = rows.min(4_000_000 / (heads * (2 * rank + rope) * (start + rows))).max(1);
            Case { window, sinks, seed, ..latent_case(dtype, heads, (rank, rope), start, rows) }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn values_in_the_keys_give_the_bits_of_values_of_their_own(case in prop_oneof![latents(), cases().prop_map(narrowed)]) {
        let data = data(&case);
        let want = case.run(&data, plain());
        assert_same_bits(&run(&case, &data, plain()), &want, "definition");
        for isa in Isa::available() {
            assert_same_bits(&run(&case, &data, tiled(isa, 1)), &want, isa.name());
            assert_same_bits(&case.run(&data, tiled(isa, 1)), &want, isa.name());
        }
        for threads in 2..=3 {
            assert_same_bits(&run(&case, &data, best(threads)), &want, "threads");
        }
    }

    #[test]
    fn a_row_over_latents_keeps_its_bits_however_the_rows_are_cut(case in latents(), cuts in prop::collection::vec(1..70usize, 1..8)) {
        let data = data(&case);
        let (whole, row) = (run(&case, &data, best(1)), case.heads() * case.v_head_dim);
        let (mut done, mut cuts) = (0, cuts.iter().cycle());
        while done < case.rows {
            let rows = cuts.next().map_or(1, |&cut| cut.min(case.rows - done));
            // Keys only up to the last row of the chunk, as in a chunked prefill.
            let out = run_in(&case, &data, (done, rows, case.start + done + rows), best(1), 0xff);
            assert_same_bits(&out, &whole[done * row..][..rows * row], "chunk");
            done += rows;
        }
    }

    #[test]
    fn results_over_latents_are_near_those_of_f64(case in latents()) {
        let data = data(&case);
        let got = run(&case, &data, best(2));
        let data = stored(&case, data);
        let Case { rows, kv_heads, head_dim, v_head_dim, .. } = case;
        let dims = Dims { rows, kv_len: case.kv_len(), heads: case.heads(), kv_heads, head_dim, v_head_dim };
        let want = attention_f32(&data.q, &data.k, &data.v, dims, case.start, &case.params(&data)).unwrap();
        // As for values of their own: a probability rounded to bf16 is off by 2^-9 of itself at most.
        let bound = if case.dtype == KvDtype::F32 { 2e-5 } else { 1.0 / 512.0 + 2e-5 };
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            prop_assert!((g - w).abs() <= bound, "element {}: {} is not {}", i, g, w);
        }
    }

    #[test]
    fn hidden_latents_that_are_not_finite_reach_no_row(case in latents(), at in 0..400usize, bad in prop_oneof![Just(f32::NAN), Just(f32::INFINITY)]) {
        let mut data = data(&case);
        let (at, clean) = (at % case.kv_len(), run(&case, &data, best(1)));
        data.k[at * case.head_dim..][..case.head_dim].fill(bad);
        let (out, row) = (run(&case, &data, best(1)), case.heads() * case.v_head_dim);
        for r in 0..case.rows {
            let position = case.start + r;
            if at > position || case.window.is_some_and(|window| at + window <= position) {
                assert_same_bits(&out[r * row..][..row], &clean[r * row..][..row], "row that does not see the latent");
            } else {
                prop_assert!(out[r * row..][..row].iter().all(|x| !x.is_finite()), "row {} sees {}", r, bad);
            }
        }
    }
}

#[test]
fn stale_bytes_past_the_last_latent_reach_no_result() {
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        // The last block holds 1, 2, 31 or 63 tokens; one row, a few, and a tile of many; an odd and an even width.
        for (tokens, rows, dims) in
            [(1, 1, (24, 8)), (2, 2, (23, 8)), (31, 40, (24, 7)), (63, 40, (32, 32)), (63, 1, (512, 64))]
        {
            let case = latent_case(dtype, 5, dims, 128 + tokens - rows, rows);
            let data = data(&case);
            for isa in Isa::available() {
                for threads in [1, 2] {
                    let whole = (0, rows, case.kv_len());
                    let run = |stale| run_in(&case, &data, whole, tiled(isa, threads), stale);
                    let clean = run(0);
                    assert!(clean.iter().all(|x| x.is_finite()), "{isa}, {dtype:?}");
                    for stale in [0xff, 0x7f] {
                        assert_same_bits(&run(stale), &clean, &format!("{isa}, {dtype:?}, {tokens} tokens, {dims:?}"));
                    }
                }
            }
        }
    }
}

#[test]
fn a_call_over_latents_that_is_split_along_its_keys_has_the_bits_of_one_that_is_not() {
    for (dtype, rows) in [(KvDtype::Bf16, 1), (KvDtype::F32, 2), (KvDtype::F16, 3)] {
        // Enough bytes for more than one task.
        let case = latent_case(dtype, 4, (161, 32), 12_000, rows);
        let data = data(&case);
        let want = case.run(&data, best(1));
        for isa in Isa::available().filter(|&isa| isa != Isa::Scalar) {
            for threads in [1, 2, 3, 8] {
                let got = run(&case, &data, tiled(isa, threads));
                assert_same_bits(&got, &want, &format!("{isa}, {threads} threads"));
            }
        }
    }
}

#[test]
fn workspace_has_one_block_of_values_more_for_each_task() {
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        for rows in [1, 2, 512] {
            let case = latent_case(dtype, 128, (512, 64), 0, rows);
            for threads in 1..=4usize {
                let bytes = |shape: &AttnShape| Route::for_shape(shape, &best(threads)).workspace_bytes(shape);
                let values = (threads * KV_BLOCK_TOKENS * 512 * dtype.bytes()) as u64;
                assert_eq!(
                    bytes(&shape(&case, rows, 9)),
                    bytes(&case.shape()) + values,
                    "{rows} rows, {threads} threads"
                );
                assert_eq!(bytes(&shape(&case, rows, 9)), bytes(&shape(&case, rows, 1 << 20)));
                let few = latent_case(dtype, 3, (512, 64), 0, rows);
                let all: Vec<u64> = (0..70).map(|rows| bytes(&shape(&few, rows, 99))).collect();
                assert!(all.is_sorted(), "more rows never take less: {all:?}");
            }
        }
    }
}

#[test]
fn workspace_over_latents_is_filled_and_one_byte_less_is_refused() {
    for (dtype, rows) in [(KvDtype::F32, 3), (KvDtype::Bf16, 3), (KvDtype::Bf16, 1)] {
        let case = latent_case(dtype, 8, (64, 16), 130, rows);
        let data = data(&case);
        let blocks = blocks(&case, &data, case.kv_len(), 0);
        let table: Vec<KvBlock<'_>> = blocks.iter().map(|k| KvBlock { k: bytemuck::cast_slice(k), v: &[] }).collect();
        let view = KvView::new(layout(&case), &table, case.kv_len()).unwrap();
        let shape = shape(&case, rows, case.kv_len());
        let route = Route::for_shape(&shape, &tiled(Isa::Scalar, 1));
        let needed_bytes = route.workspace_bytes(&shape);
        let mut out = vec![0.0; rows * case.heads() * case.v_head_dim];
        let mut scratch = aligned(usize::try_from(needed_bytes).unwrap(), 0xa5);
        let scratch: &mut [u8] = bytemuck::cast_slice_mut(&mut scratch);
        let less = &mut scratch[..usize::try_from(needed_bytes).unwrap() - 1];
        let refused = route.run(&data.q, &view, case.start, &case.params(&data), &mut out, less).unwrap_err();
        assert_eq!(refused, Error::ScratchBytes { needed_bytes, actual_bytes: needed_bytes - 1 });
        route.run(&data.q, &view, case.start, &case.params(&data), &mut out, scratch).unwrap();
        // All of it is written: the plan has no part that a run does not use.
        let untouched = scratch.chunks_exact(64).filter(|line| line.iter().all(|&byte| byte == 0xa5)).count();
        assert_eq!(untouched, 0, "{dtype:?}, {rows} rows: of {needed_bytes} bytes");
    }
}

#[test]
fn latents_are_one_key_head_without_a_block_of_values() {
    let latent = KvLayout::latent(512, 64, KvDtype::Bf16);
    assert_eq!((latent.kv_heads, latent.head_dim, latent.v_head_dim), (1, 576, 512));
    assert_eq!((latent.k_block_bytes(), latent.v_block_bytes()), (64 * 576 * 2, 0));
    assert_eq!((latent.k_row_elements(), latent.v_row_elements()), (576, 0));
    let odd = KvLayout::latent(23, 8, KvDtype::F16);
    let mut block = aligned(odd.k_block_bytes(), 0xff);
    let written: Vec<f32> = (0..31u8).map(f32::from).collect();
    odd.write_rows(bytemuck::cast_slice_mut(&mut block), &mut [], 5, &written, &[], 1);
    let (mut k, mut v) = ([0.0; 31], [0.0; 23]);
    odd.read_row(bytemuck::cast_slice(&block), &[], 5, &mut k, &mut v);
    assert_eq!((&k[..], &v[..]), (&written[..], &written[..23]));
}

#[test]
fn wrong_latents_are_refused_with_numbers() {
    let case = latent_case(KvDtype::Bf16, 2, (24, 8), 90, 10);
    let data = data(&case);
    let blocks = blocks(&case, &data, 100, 0);
    let table: Vec<KvBlock<'_>> = blocks.iter().map(|k| KvBlock { k: bytemuck::cast_slice(k), v: &[] }).collect();
    let view = KvView::new(layout(&case), &table, 100).unwrap();
    let wide = KvLayout { v_head_dim: 33, ..layout(&case) };
    let past = Error::ValuesPastKeys { head_dim: 32, v_head_dim: 33 };
    assert_eq!(KvView::new(wide, &table, 100).unwrap_err(), past);
    let own = Error::BlockBytes { block: 0, part: "V", expected_bytes: 64 * 24 * 2, actual_bytes: 0 };
    assert_eq!(KvView::new(case.layout(), &table, 100).unwrap_err(), own);
    let both = [KvBlock { v: table[0].k, ..table[0] }];
    let none = Error::BlockBytes { block: 0, part: "V", expected_bytes: 0, actual_bytes: 64 * 32 * 2 };
    assert_eq!(KvView::new(layout(&case), &both, 60).unwrap_err(), none);
    let huge = KvLayout::latent(usize::MAX, 64, KvDtype::Bf16);
    assert!(matches!(KvView::new(huge, &table, 100), Err(Error::TooLarge { axis: "head_dim", .. })));

    let mut out = vec![0.0; 10 * 2 * 24];
    let mut run = |shape: AttnShape| {
        let mut scratch = aligned(1 << 20, 0);
        let how = Settings { route: Some(RouteKind::Tiled), isa: Isa::Scalar, threads: 1 };
        let scratch = bytemuck::cast_slice_mut(&mut scratch);
        Route::for_shape(&shape, &how).run(&data.q, &view, 90, &case.params(&data), &mut out, scratch)
    };
    let mismatch = Error::ValuesMismatch { expected: KvValues::Own, actual: KvValues::InKeys };
    assert_eq!(run(case.shape()), Err(mismatch));
    assert_eq!(run(AttnShape { v_head_dim: 33, ..shape(&case, 10, 100) }), Err(past));
    assert_eq!(run(shape(&case, 10, 100)), Ok(()));
}
