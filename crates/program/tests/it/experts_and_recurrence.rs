//! Steps of routed experts and of recurrent layers: what is recorded, and what is refused.

use plimsoll_program::{
    Access, BuildError, Condition, DType, DeltaOperands, Extent, HeadOrder, Op, ProgramBuilder, RouteSpec, ScanValues,
    Scoring, Slot,
};

const F32: DType = DType::F32;
const ROUTE: RouteSpec = RouteSpec { k: 2, scoring: Scoring::Softmax, normalize: true, scale: 1.0 };

fn refusal(record: impl FnOnce(&mut ProgramBuilder)) -> String {
    let mut b = ProgramBuilder::new();
    record(&mut b);
    let fault = b.build().unwrap_err();
    assert!(!matches!(fault, BuildError::Several { .. }), "one fault gives one error: {fault:?}");
    fault.to_string()
}

fn rows(b: &mut ProgramBuilder, width: usize) -> Slot {
    b.fill(1.0, Extent::PerRow(width))
}

#[test]
fn routed_products_keep_the_slots_of_a_row_side_by_side() {
    let mut b = ProgramBuilder::new();
    let (x, logits) = (rows(&mut b, 6), rows(&mut b, 8));
    let (up, down) = (b.constant("up", &[8, 10, 6], F32), b.constant("down", &[8, 6, 10], F32));
    let (ids, weights) = b.top_k(logits, ROUTE);
    let h = b.expert_linear(x, ids, up);
    let y = b.expert_linear(h, ids, down);
    let sum = b.combine_experts(y, weights);
    let program = b.build().unwrap();
    let extents = [ids, weights, h, y, sum].map(|slot| program.slot(slot).extent.width());
    assert_eq!(extents, [2, 2, 20, 12, 6]);
    assert_eq!((program.slot(ids).dtype, program.slot(h).groups), (DType::U32, 2));
    let top_k = &program.main().steps()[2];
    let mut named = Vec::new();
    top_k.op.visit(|slot, access| named.push((slot, access)));
    assert_eq!(named, [(logits, Access::Read), (ids, Access::Write), (weights, Access::Write)]);
    // The experts outlive the first product, not the second.
    assert!(!program.main().release(3).contains(&ids) && program.main().release(4).contains(&ids));
}

#[test]
fn experts_that_do_not_fit_are_refused() {
    let none = RouteSpec { k: 0, ..ROUTE };
    let message = refusal(|b| {
        let logits = rows(b, 8);
        b.top_k(logits, none);
    });
    assert_eq!(message, "top_k: 0 of 8 experts");
    let message = refusal(|b| {
        let (x, logits) = (rows(b, 7), rows(b, 8));
        let weight = b.constant("up", &[8, 10, 6], F32);
        let (ids, _) = b.top_k(logits, ROUTE);
        b.expert_linear(x, ids, weight);
    });
    let expected = "[experts, out_features, 7], or a part of that for each of 2 slots";
    assert_eq!(message, format!("expert_linear: constant 'up' has shape [8, 10, 6], expected {expected}"));
    let message = refusal(|b| {
        let (x, logits) = (rows(b, 6), rows(b, 8));
        let weight = b.constant("up", &[1, 10, 6], F32);
        let (ids, _) = b.top_k(logits, ROUTE);
        b.expert_linear(x, ids, weight);
    });
    assert_eq!(message, "expert_linear: 2 of 1 experts");
    let message = refusal(|b| {
        let (x, logits) = (rows(b, 7), rows(b, 8));
        let x = b.named(x, "x");
        let (_, weights) = b.top_k(logits, ROUTE);
        b.combine_experts(x, weights);
    });
    assert_eq!(message, "combine_experts: the 7 elements per row of 'x' do not split into 2 groups");
    let message = refusal(|b| {
        let (x, factor) = (rows(b, 6), b.fill(1.0, Extent::Fixed(1)));
        b.named(factor, "gate");
        b.scale_rows(x, factor);
    });
    assert_eq!(message, "scale_rows: 'gate' is [1], expected [rows, 1]");
}

#[test]
fn columns_are_taken_from_every_group() {
    let mut b = ProgramBuilder::new();
    let x = rows(&mut b, 12);
    let heads = b.split_heads(x, 3);
    let gate = b.select_columns(heads, 2, 2);
    let program = b.build().unwrap();
    let info = program.slot(gate);
    assert_eq!((info.extent, info.groups, info.head_dim()), (Extent::PerRow(6), 3, 2));
    let message = refusal(|b| {
        let x = rows(b, 12);
        let heads = b.split_heads(x, 3);
        b.named(heads, "q");
        b.select_columns(heads, 3, 2);
    });
    assert_eq!(message, "select_columns: elements 3..3+2 of each group of 'q', which has 4");
}

struct Layer {
    x: Slot,
    taps: Slot,
    state: Slot,
}

/// 4 channels, 3 taps; 8 elements of state for the convolution, 8 for a delta rule.
fn layer(b: &mut ProgramBuilder) -> Layer {
    let state = b.state("blk.0.state", Extent::Fixed(16), F32);
    Layer { x: rows(b, 4), taps: b.constant("taps", &[12], F32), state }
}

#[test]
fn a_layer_has_one_state_whose_parts_are_views() {
    let mut b = ProgramBuilder::new();
    let Layer { x, taps, state } = layer(&mut b);
    let tail = b.view(state, 0, 8);
    let y = b.causal_conv(0, x, taps, None, tail);
    let matrix = b.view(state, 8, 8);
    let q = b.split_heads(y, 2);
    let factors = rows(&mut b, 2);
    let out = b.gated_delta(
        0,
        DeltaOperands { q, k: q, v: q, decay: factors, beta: factors, order: HeadOrder::Grouped },
        matrix,
    );
    let program = b.build().unwrap();
    assert_eq!(program.root(matrix), (state, 8));
    assert_eq!((program.slot(out).extent, program.slot(out).groups), (Extent::PerRow(4), 2));
    let ops: Vec<_> = program.main().steps().iter().map(|step| step.op.name()).collect();
    assert_eq!(ops, ["fill", "causal_conv", "fill", "gated_delta"]);
    let Op::CausalConv { state: named, .. } = program.main().steps()[1].op else { panic!("a convolution") };
    assert_eq!(named, tail);
}

#[test]
fn a_view_of_state_from_before_an_update_is_stale() {
    let message = refusal(|b| {
        let Layer { x, taps, state } = layer(b);
        let (tail, matrix) = (b.view(state, 0, 8), b.view(state, 8, 8));
        b.causal_conv(0, x, taps, None, tail);
        b.copy(matrix);
    });
    assert_eq!(message, "copy: 'blk.0.state' was overwritten in place by causal_conv");
}

#[test]
fn state_of_another_size_or_kind_is_refused() {
    let message = refusal(|b| {
        let Layer { x, taps, state } = layer(b);
        b.causal_conv(0, x, taps, None, state);
    });
    assert_eq!(message, "causal_conv: 'blk.0.state' is [16], expected [8]");
    let message = refusal(|b| {
        let Layer { x, taps, .. } = layer(b);
        let fixed = b.fill(0.0, Extent::Fixed(8));
        b.named(fixed, "zeros");
        b.causal_conv(0, x, taps, None, fixed);
    });
    assert_eq!(message, "causal_conv: 'zeros' is a slot of kind temporary, expected state");
    let message = refusal(|b| {
        let Layer { taps, state, .. } = layer(b);
        let (x, tail) = (rows(b, 5), b.view(state, 0, 8));
        b.causal_conv(0, x, taps, None, tail);
    });
    assert_eq!(message, "causal_conv: constant 'taps' has shape [12], expected [5 * kernel]");
    let message = refusal(|b| {
        let Layer { x, state, .. } = layer(b);
        let q = b.split_heads(x, 2);
        let factors = rows(b, 1);
        b.gated_delta(
            0,
            DeltaOperands { q, k: q, v: x, decay: factors, beta: factors, order: HeadOrder::Grouped },
            state,
        );
    });
    assert_eq!(message, "gated_delta: 1 value heads over 2 key heads of q and 2 of k");
}

#[test]
fn a_scan_body_cannot_update_the_state_of_a_whole_pass() {
    let message = refusal(|b| {
        let Layer { x, taps, state } = layer(b);
        let tail = b.view(state, 0, 8);
        b.scan(&[x], &[], |b, _, _| {
            let y = b.causal_conv(0, x, taps, None, tail);
            b.sum(y);
            ScanValues { carries: Vec::new(), outputs: Vec::new() }
        });
    });
    let why = "only a whole temporary of the same chain or a carry can";
    assert_eq!(message, format!("causal_conv: 'blk.0.state' (state) cannot be overwritten here: {why}"));
    // A branch can.
    let mut b = ProgramBuilder::new();
    let Layer { x, taps, state } = layer(&mut b);
    let tail = b.view(state, 0, 8);
    b.if_(Condition::RowsAtMost(3), |b| vec![b.causal_conv(0, x, taps, None, tail)], |b| vec![b.copy(x)]);
    b.build().unwrap();
}
