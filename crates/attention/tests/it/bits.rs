//! The bits of a row belong to the row.

use plimsoll_attention::{Isa, KvDtype, KvView, Route};
use proptest::prelude::*;

use crate::support::{Case, aligned, assert_same_bits, best, cases, plain, tiled};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_definition(case in cases()) {
        let data = case.data();
        let want = case.run(&data, plain());
        for isa in Isa::available() {
            assert_same_bits(&case.run(&data, tiled(isa, 1)), &want, isa.name());
        }
    }

    #[test]
    fn a_row_keeps_its_bits_however_the_rows_are_cut(case in cases(), cuts in prop::collection::vec(1..70usize, 1..8)) {
        let data = case.data();
        let whole = case.run(&data, best(1));
        let row = case.heads() * case.v_head_dim;
        let single_rows = vec![1];
        for cuts in [&cuts, &single_rows] {
            let mut done = 0;
            // Single rows stop after 80: they cost a call each.
            for &cut in cuts.iter().cycle().take(80) {
                let rows = cut.min(case.rows - done);
                if rows == 0 {
                    break;
                }
                // Keys only up to the last row of the chunk, as in a chunked prefill.
                let out = case.run_rows(&data, done, rows, case.start + done + rows, best(1));
                assert_same_bits(&out, &whole[done * row..][..rows * row], "chunk");
                done += rows;
            }
        }
    }

    #[test]
    fn thread_counts_change_no_bit(case in cases()) {
        let data = case.data();
        let want = case.run(&data, best(1));
        for threads in 2..=4 {
            assert_same_bits(&case.run(&data, best(threads)), &want, "threads");
        }
    }

    #[test]
    fn hidden_values_that_are_not_finite_reach_no_row(case in cases(), at in 0..400usize, bad in prop_oneof![Just(f32::NAN), Just(f32::INFINITY)]) {
        let mut data = case.data();
        let clean = case.run(&data, best(1));
        let at = at % case.kv_len();
        let v_row = case.kv_heads * case.v_head_dim;
        data.v[at * v_row..][..v_row].fill(bad);
        let k_row = case.kv_heads * case.head_dim;
        data.k[at * k_row..][..k_row].fill(bad);
        let out = case.run(&data, best(1));
        let row = case.heads() * case.v_head_dim;
        for r in 0..case.rows {
            let position = case.start + r;
            let hidden = at > position || case.window.is_some_and(|window| at + window <= position);
            let (got, want) = (&out[r * row..][..row], &clean[r * row..][..row]);
            if hidden {
                assert_same_bits(got, want, "row that does not see the value");
            } else {
                prop_assert!(got.iter().all(|x| !x.is_finite()), "row {} sees {} and is {:?}", r, bad, &got[..1]);
            }
        }
    }
}

#[test]
fn a_nan_just_before_a_window_reaches_no_row() {
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        // The row at 64 sees 1..=64: token 0 is hidden, and shares a pair with token 1.
        let case = Case {
            dtype,
            kv_heads: 1,
            group_size: 1,
            head_dim: 64,
            v_head_dim: 64,
            start: 64,
            rows: 1,
            window: Some(64),
            softcap: None,
            sinks: false,
            seed: 0,
        };
        let mut data = case.data();
        let clean = case.run(&data, plain());
        data.k[..64].fill(f32::NAN);
        data.v[..64].fill(f32::NAN);
        for isa in Isa::available() {
            assert_same_bits(&case.run(&data, tiled(isa, 1)), &clean, isa.name());
        }
    }
}

#[test]
fn keys_past_the_rows_change_no_bit() {
    let case = Case {
        dtype: KvDtype::Bf16,
        kv_heads: 2,
        group_size: 3,
        head_dim: 64,
        v_head_dim: 64,
        start: 30,
        rows: 170,
        window: None,
        softcap: None,
        sinks: false,
        seed: 5,
    };
    let data = case.data();
    let row = case.heads() * case.v_head_dim;
    let want = case.run_rows(&data, 0, 20, 50, best(1));
    let got = case.run_rows(&data, 0, 20, 200, best(1));
    assert_same_bits(&got, &want, "20 rows");
    assert_same_bits(&case.run(&data, best(1))[..20 * row], &want, "first 20 of 170 rows");
}

#[test]
fn stale_bytes_past_kv_len_reach_no_result() {
    // Rows in the last block, which holds 1, 2 or 63 tokens: one row, a few, and a tile of many.
    for (dtype, rows, tokens) in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16]
        .into_iter()
        .flat_map(|dtype| [1, 2, 40].map(|rows| (dtype, rows)))
        .flat_map(|(dtype, rows)| [1, 2, 63].map(|tokens| (dtype, rows, tokens)))
    {
        let case = Case {
            dtype,
            kv_heads: 2,
            group_size: 2,
            head_dim: 64,
            v_head_dim: 32,
            start: 128 + tokens - rows,
            rows,
            window: None,
            softcap: None,
            sinks: true,
            seed: 9,
        };
        let data = case.data();
        for isa in Isa::available() {
            for threads in [1, 2] {
                let run = |stale| {
                    let blocks = case.blocks_in(&data, case.kv_len(), stale);
                    let table = blocks.table();
                    let view = KvView::new(case.layout(), &table, case.kv_len()).unwrap();
                    let route = Route::for_shape(&case.shape(), &tiled(isa, threads));
                    let mut scratch = aligned(usize::try_from(route.workspace_bytes(&case.shape())).unwrap(), stale);
                    let mut out = vec![f32::NAN; rows * case.heads() * case.v_head_dim];
                    let scratch = bytemuck::cast_slice_mut(&mut scratch);
                    route.run(&data.q, &view, case.start, &case.params(&data), &mut out, scratch).unwrap();
                    out
                };
                // 0xff bytes are NaN in every format, 0x7f bytes are numbers near the largest or NaN.
                let clean = run(0);
                assert!(clean.iter().all(|x| x.is_finite()), "{isa}, {dtype:?}");
                for stale in [0xff, 0x7f] {
                    assert_same_bits(&run(stale), &clean, &format!("{isa}, {dtype:?}, {tokens} tokens, {rows} rows"));
                }
            }
        }
    }
}

#[test]
fn a_call_that_is_split_along_its_keys_has_the_bits_of_one_that_is_not() {
    for (dtype, window, sinks) in
        [(KvDtype::Bf16, None, false), (KvDtype::F32, Some(9000), true), (KvDtype::F16, Some(7001), false)]
    {
        for (kv_heads, rows) in [(1, 1), (1, 3), (3, 1)] {
            let case = Case {
                dtype,
                kv_heads,
                group_size: 3,
                head_dim: 128,
                v_head_dim: 96,
                // Enough bytes for more than one task, and more blocks than results may wait.
                start: 12_000,
                rows,
                window,
                softcap: None,
                sinks,
                seed: 11,
            };
            let mut data = case.data();
            // An infinite value that the first row alone does not see takes the slow way through its block.
            let hidden = (case.kv_len() - 1) * kv_heads * case.v_head_dim;
            if rows > 1 {
                data.v[hidden] = f32::INFINITY;
            }
            let want = case.run(&data, best(1));
            for isa in Isa::available().filter(|&isa| isa != Isa::Scalar) {
                for threads in [2, 3, 8] {
                    assert_same_bits(
                        &case.run(&data, tiled(isa, threads)),
                        &want,
                        &format!("{isa}, {threads} threads"),
                    );
                }
            }
        }
    }
}
