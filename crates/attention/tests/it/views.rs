//! Blocks keep what was written, and wrong calls say what is wrong.

use plimsoll_attention::{AttnParams, AttnShape, Error, Isa, KvBlock, KvDtype, KvLayout, KvValues, KvView, Route};
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;

use crate::support::{Case, Data, aligned, assert_same_bits, best, cases, plain, tiled};

fn case() -> Case {
    Case {
        dtype: KvDtype::Bf16,
        kv_heads: 1,
        group_size: 2,
        head_dim: 16,
        v_head_dim: 16,
        start: 90,
        rows: 10,
        window: None,
        softcap: None,
        sinks: false,
        seed: 1,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows_read_back_as_written_wherever_a_block_was_cut(case in cases(), cut in 1..64usize) {
        let layout = case.layout();
        let rows = case.kv_len().min(64);
        let data = case.data();
        let (k_row, v_row) = (case.kv_heads * case.head_dim, case.kv_heads * case.v_head_dim);
        let (mut k_block, mut v_block) = (aligned(layout.k_block_bytes(), 0xff), aligned(layout.v_block_bytes(), 0xff));
        for (at, count) in [(0, cut.min(rows)), (cut.min(rows), rows - cut.min(rows))] {
            let (k, v) = (&data.k[at * k_row..][..count * k_row], &data.v[at * v_row..][..count * v_row]);
            layout.write_rows(bytemuck::cast_slice_mut(&mut k_block), bytemuck::cast_slice_mut(&mut v_block), at, k, v, count);
        }
        let (mut k, mut v) = (vec![0.0; k_row], vec![0.0; v_row]);
        let store = |x: &f32| match case.dtype {
            KvDtype::F32 => *x,
            KvDtype::F16 => half::f16::from_f32(*x).to_f32(),
            KvDtype::Bf16 => half::bf16::from_f32(*x).to_f32(),
        };
        for token in 0..rows {
            layout.read_row(bytemuck::cast_slice(&k_block), bytemuck::cast_slice(&v_block), token, &mut k, &mut v);
            prop_assert_eq!(&k, &data.k[token * k_row..][..k_row].iter().map(store).collect::<Vec<_>>());
            prop_assert_eq!(&v, &data.v[token * v_row..][..v_row].iter().map(store).collect::<Vec<_>>());
        }
    }
}

#[test]
fn bf16_blocks_hold_no_value_below_the_operand_floor() {
    let layout = KvLayout { kv_heads: 1, head_dim: 4, v_head_dim: 1, dtype: KvDtype::Bf16, values: KvValues::Own };
    let (mut k_block, mut v_block) = (aligned(layout.k_block_bytes(), 0), aligned(layout.v_block_bytes(), 0));
    let floor = 2f32.powi(-50);
    // The next number below the floor would round up to it.
    let written = [floor, -floor.next_down(), -0.0, f32::NAN];
    layout.write_rows(
        bytemuck::cast_slice_mut(&mut k_block),
        bytemuck::cast_slice_mut(&mut v_block),
        3,
        &written,
        &[1.0],
        1,
    );
    let (mut k, mut v) = ([0.0; 4], [0.0]);
    layout.read_row(bytemuck::cast_slice(&k_block), bytemuck::cast_slice(&v_block), 3, &mut k, &mut v);
    assert_eq!(k[0], floor);
    assert_eq!([k[1].to_bits(), k[2].to_bits()], [0, 0]);
    assert!(k[3].is_nan());
}

#[test]
fn a_view_needs_enough_blocks_of_the_right_size_and_alignment() {
    let case = case();
    let layout = case.layout();
    let blocks = case.blocks(&case.data(), 100);
    let table = blocks.table();
    assert_eq!(
        KvView::new(layout, &table[..1], 100).unwrap_err(),
        Error::MissingBlocks { kv_len: 100, first_block: 0, needed: 2, actual: 1 }
    );
    assert!(KvView::from_block(layout, &table[1..], 100, 1).is_ok());
    let short = [KvBlock { k: &table[0].k[..64], v: table[0].v }];
    assert_eq!(
        KvView::new(layout, &short, 10).unwrap_err(),
        Error::BlockBytes { block: 0, part: "K", expected_bytes: 2048, actual_bytes: 64 }
    );
    let long = aligned(layout.v_block_bytes() + 64, 0);
    let shifted = [KvBlock { k: table[0].k, v: &bytemuck::cast_slice(&long)[8..][..layout.v_block_bytes()] }];
    assert_eq!(
        KvView::new(layout, &shifted, 10).unwrap_err(),
        Error::BlockAlignment { block: 0, part: "V", offset: 8 }
    );
    let none = KvLayout { head_dim: 0, ..layout };
    assert_eq!(KvView::new(none, &table, 10).unwrap_err(), Error::EmptyAxis { axis: "head_dim" });
    // 64 times this length, and 4 bytes each, wrap to 256 bytes.
    let length = (1 << 56) + 1;
    let wraps = KvLayout { kv_heads: 1, head_dim: length, v_head_dim: 16, dtype: KvDtype::F32, values: KvValues::Own };
    let error = Error::TooLarge { axis: "head_dim", length, maximum: 1 << 17 };
    assert_eq!(KvView::new(wraps, &table, 10).unwrap_err(), error);
}

/// What a call is made of.
struct Call {
    shape: AttnShape,
    data: Data,
    start: usize,
    params: AttnParams<'static>,
    scratch_bytes: usize,
}

/// Runs with one thing changed and returns the refusal.
fn refusal(change: impl FnOnce(&mut Call)) -> Error {
    let case = case();
    let params = AttnParams { scale: 1.0, window: None, softcap: None, sinks: None };
    let mut call = Call { shape: case.shape(), data: case.data(), start: case.start, params, scratch_bytes: 1 << 20 };
    let blocks = case.blocks(&call.data, case.kv_len());
    let table = blocks.table();
    let view = KvView::new(case.layout(), &table, case.kv_len()).unwrap();
    change(&mut call);
    let mut scratch = aligned(call.scratch_bytes, 0);
    let mut out = vec![0.0; 10 * 2 * 16];
    Route::for_shape(&call.shape, &best(1))
        .run(&call.data.q, &view, call.start, &call.params, &mut out, bytemuck::cast_slice_mut(&mut scratch))
        .unwrap_err()
}

#[test]
fn wrong_calls_are_refused_with_numbers() {
    assert_eq!(refusal(|call| call.start = 91), Error::RowsPastKeys { start: 91, rows: 10, kv_len: 100 });
    assert_eq!(
        refusal(|call| call.start = usize::MAX),
        Error::RowsPastKeys { start: usize::MAX, rows: 10, kv_len: 100 }
    );
    assert_eq!(refusal(|call| call.shape.kv_heads = 3), Error::HeadGroups { heads: 2, kv_heads: 3 });
    assert_eq!(
        refusal(|call| call.shape.kv_heads = 2),
        Error::LayoutMismatch { field: "kv_heads", expected: 2, actual: 1 }
    );
    assert_eq!(
        refusal(|call| call.shape.kv_dtype = KvDtype::F16),
        Error::DtypeMismatch { expected: KvDtype::F16, actual: KvDtype::Bf16 }
    );
    assert_eq!(refusal(|call| call.params.window = Some(4)), Error::Window { expected: None, actual: Some(4) });
    assert_eq!(
        refusal(|call| call.params.sinks = Some(&[0.0])),
        Error::SliceLength { slice: "sinks", expected: 2, actual: 1 }
    );
    assert_eq!(
        refusal(|call| call.data.q.truncate(319)),
        Error::SliceLength { slice: "q", expected: 288, actual: 319 }
    );
    assert!(matches!(refusal(|call| call.scratch_bytes = 64), Error::ScratchBytes { actual_bytes: 64, .. }));
}

#[test]
fn a_window_that_was_dropped_is_refused_and_one_that_was_kept_gives_the_same_bits() {
    let case = Case { window: Some(20), ..case() };
    let data = case.data();
    let blocks = case.blocks(&data, 100);
    let table = blocks.table();
    let kept = KvView::from_block(case.layout(), &table[1..], 100, 1).unwrap();
    let all = KvView::new(case.layout(), &table, 100).unwrap();
    let route = Route::for_shape(&case.shape(), &best(1));
    let mut scratch = aligned(1 << 20, 0);
    let mut run = |view: &KvView<'_>, start: usize, rows: usize| {
        let mut out = vec![0.0; rows * 32];
        let q = &data.q[(start - 90) * 32..][..rows * 32];
        let scratch = bytemuck::cast_slice_mut(&mut scratch);
        route.run(q, view, start, &case.params(&data), &mut out, scratch).map(|()| out)
    };
    assert_eq!(run(&kept, 90, 10), run(&all, 90, 10));
    assert!(run(&all, 90, 10).is_ok());
    let narrow = KvView::from_block(case.layout(), &table[1..], 100, 1).unwrap();
    let wide = AttnParams { window: Some(30), ..case.params(&data) };
    let route = Route::for_shape(&AttnShape { window: Some(30), ..case.shape() }, &best(1));
    let mut out = vec![0.0; 320];
    let mut scratch = aligned(1 << 20, 0);
    assert_eq!(
        route.run(&data.q, &narrow, 90, &wide, &mut out, bytemuck::cast_slice_mut(&mut scratch)).unwrap_err(),
        Error::KeysDropped { needed_position: 61, first_position: 64 }
    );
}

#[test]
fn a_call_that_is_stopped_computes_nothing_more_and_says_so() {
    let case = Case { start: 100, rows: 70, ..case() };
    let data = case.data();
    let blocks = case.blocks(&data, case.kv_len());
    let table = blocks.table();
    let view = KvView::new(case.layout(), &table, case.kv_len()).unwrap();
    let tiled = Isa::available().flat_map(|isa| [1, 2].map(|threads| tiled(isa, threads)));
    for settings in tiled.chain([plain()]) {
        let route = Route::for_shape(&case.shape(), &settings);
        let mut scratch = aligned(1 << 20, 0);
        let mut until = |stop: bool| {
            let mut out = vec![f32::NAN; case.rows * case.heads() * case.v_head_dim];
            let (params, stop) = (case.params(&data), AtomicBool::new(stop));
            let scratch = bytemuck::cast_slice_mut(&mut scratch);
            (route.run_until(&data.q, &view, case.start, &params, &mut out, scratch, &stop), out)
        };
        let (result, out) = until(true);
        assert_eq!(result, Err(Error::Stopped), "{settings:?}");
        assert!(out.iter().all(|value| value.is_nan()), "{settings:?}");
        let (result, out) = until(false);
        assert_eq!(result, Ok(()), "{settings:?}");
        assert_same_bits(&out, &case.run(&data, plain()), &format!("{settings:?}"));
    }
}
