//! What the builder records, and what it refuses, with the message a user sees.

use plimsoll_program::{
    AttendSpec, BuildError, Condition, DType, Extent, Op, ProgramBuilder, RopeLayout, ScanValues, Slot, SlotKind, Unary,
};

const F32: DType = DType::F32;

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
fn a_linear_step_checks_weight_and_bias() {
    let message = refusal(|b| {
        let (x, w) = (rows(b, 4), b.constant("blk.0.attn_q.weight", &[8, 6], F32));
        b.scope("layer 0", |b| b.linear(x, w));
    });
    assert_eq!(
        message,
        "linear in layer 0: constant 'blk.0.attn_q.weight' has shape [8, 6], expected [out_features, 4]"
    );
    let message = refusal(|b| {
        let (x, w) = (rows(b, 4), b.constant("w", &[8, 4], F32));
        let bias = b.constant("bias", &[7], F32);
        b.linear_bias(x, w, bias);
    });
    assert_eq!(message, "linear: constant 'bias' has shape [7], expected [8]");
    let message = refusal(|b| {
        let x = rows(b, 4);
        b.named(x, "x");
        b.linear(x, x);
    });
    assert_eq!(message, "linear: 'x' is a slot of kind temporary, expected a constant");
}

#[test]
fn several_weights_share_one_step() {
    let mut b = ProgramBuilder::new();
    let (x, q, k) = (rows(&mut b, 4), b.constant("q", &[8, 4], F32), b.constant("k", &[2, 4], F32));
    let outs = b.linear_many(x, &[(q, None), (k, None)]);
    assert!(b.linear_many(x, &[]).is_empty());
    let program = b.build().unwrap();
    assert_eq!(program.step_count(), 2);
    let extents: Vec<Extent> = outs.iter().map(|&out| program.slot(out).extent).collect();
    assert_eq!(extents, [Extent::PerRow(8), Extent::PerRow(2)]);
    assert!(matches!(&program.main().steps()[1].op, Op::Linear { parts, .. } if parts.len() == 2));
}

#[test]
fn a_fault_is_reported_once_and_does_not_spread() {
    let mut b = ProgramBuilder::new();
    let (x, w) = (rows(&mut b, 4), b.constant("w", &[8, 6], F32));
    let broken = b.linear(x, w);
    let more = b.add(broken, x);
    let more = b.rms_norm_assign(more, w, 1e-5);
    let done = b.scan(&[more], &[], |b, rows, _| ScanValues { carries: vec![], outputs: vec![b.scale(rows[0], 2.0)] });
    b.mark_output(done.outputs[0]);
    b.view(x, 0, 1);
    match b.build().unwrap_err() {
        BuildError::Several { faults } => {
            let ops: Vec<bool> = faults.iter().map(|fault| matches!(fault, BuildError::Shape { .. })).collect();
            assert_eq!(ops, [true, false], "{faults:?}");
        }
        other => panic!("two faults expected: {other:?}"),
    }
}

#[test]
fn operands_must_fit() {
    let message = refusal(|b| {
        let (x, y) = (rows(b, 4), b.input("y", Extent::PerRow(5), F32));
        b.add(x, y);
    });
    assert_eq!(message, "add: 'y' is [rows, 5], expected [rows, 4]");
    let message = refusal(|b| {
        let (ids, table) = (b.input("ids", Extent::PerRow(1), F32), b.constant("table", &[10, 4], F32));
        b.embed(ids, table);
    });
    assert_eq!(message, "embed: 'ids' is F32, expected U32");
    let message = refusal(|b| {
        let x = b.input("x", Extent::PerRow(6), F32);
        b.split_heads(x, 4);
    });
    assert_eq!(message, "split_heads: the 6 elements per row of 'x' do not split into 4 groups");
    let message = refusal(|b| {
        let x = b.input("x", Extent::Fixed(6), F32);
        b.view(x, 5, 2);
    });
    assert_eq!(message, "view: elements 5..5+2 of 'x', which has 6");
    let message = refusal(|b| {
        b.input("x", Extent::Fixed(6), F32);
        b.constant("x", &[1], F32);
    });
    assert_eq!(message, "constant: the name 'x' is taken");
    let message = refusal(|b| {
        let (x, angles) = (rows(b, 8), rows(b, 6));
        let x = b.split_heads(x, 2);
        b.rope(x, angles, RopeLayout::Pairs);
    });
    assert_eq!(message, "rope: a rotary table of 6 elements for heads of 4");
}

#[test]
fn attention_checks_its_heads() {
    let attend = |heads: [usize; 3], widths: [usize; 3], window| {
        refusal(|b| {
            let kv = b.state("kv", Extent::Fixed(0), F32);
            let [q, k, v] = [0, 1, 2].map(|i| {
                let x = rows(b, widths[i]);
                b.split_heads(x, heads[i])
            });
            b.attend(0, q, k, v, kv, AttendSpec { window, ..AttendSpec::causal(1.0) });
        })
    };
    assert_eq!(attend([3, 2, 2], [12, 8, 8], None), "attend: 3 heads over 2 key heads and 2 value heads");
    assert_eq!(attend([4, 2, 1], [16, 8, 8], None), "attend: 4 heads over 2 key heads and 1 value heads");
    assert_eq!(attend([4, 2, 2], [16, 6, 8], None), "attend: query heads have 4 elements, key heads 3");
    assert_eq!(attend([4, 2, 2], [16, 8, 8], Some(0)), "attend: a window of 0 keys");
}

#[test]
fn attention_gives_the_value_width() {
    let mut b = ProgramBuilder::new();
    let kv = b.state("kv", Extent::Fixed(0), F32);
    let [q, k, v] = [(16, 4), (8, 2), (6, 2)].map(|(width, heads)| {
        let x = rows(&mut b, width);
        b.split_heads(x, heads)
    });
    let out = b.attend(0, q, k, v, kv, AttendSpec::causal(0.5));
    let info = b.info(out).unwrap();
    assert_eq!((info.extent, info.groups, info.head_dim()), (Extent::PerRow(12), 4, 3));
    assert_eq!(b.build().unwrap().states(), [kv]);
}

#[test]
fn a_slot_cannot_be_used_after_its_memory_was_taken() {
    let message = refusal(|b| {
        let (x, y) = (rows(b, 4), rows(b, 4));
        b.named(x, "x");
        b.add_assign(x, y);
        b.add(y, x);
    });
    assert_eq!(message, "add: 'x' was overwritten in place by add_assign");
    let message = refusal(|b| {
        let x = rows(b, 4);
        b.named(x, "x");
        let heads = b.split_heads(x, 2);
        let merged = b.merge_heads(heads);
        b.unary_assign(merged, Unary::Tanh);
        b.sum(heads);
    });
    assert_eq!(message, "sum: 'x' was overwritten in place by unary_assign");
}

#[test]
fn only_whole_temporaries_of_the_same_chain_are_overwritten() {
    let suffix = "cannot be overwritten here: only a whole temporary of the same chain or a carry can";
    let message = refusal(|b| {
        let x = b.input("x", Extent::Fixed(4), F32);
        b.scale_assign(x, 2.0);
    });
    assert_eq!(message, format!("scale_assign: 'x' (input) {suffix}"));
    let message = refusal(|b| {
        let x = b.fill(1.0, Extent::Fixed(4));
        b.named(x, "x");
        let half = b.view(x, 0, 2);
        b.scale_assign(half, 2.0);
    });
    assert_eq!(message, format!("scale_assign: 'x' (temporary) {suffix}"));
    let message = refusal(|b| {
        let x = rows(b, 4);
        b.named(x, "x");
        b.if_(Condition::RowsAtMost(1), |b| vec![b.scale_assign(x, 2.0)], |b| vec![b.copy(x)]);
    });
    assert!(message.starts_with(&format!("scale_assign: 'x' (temporary) {suffix}")), "{message}");
    let message = refusal(|b| {
        let x = rows(b, 4);
        b.named(x, "x");
        b.mark_output(x);
        b.scale_assign(x, 2.0);
    });
    assert_eq!(message, format!("scale_assign: 'x' (output) {suffix}"));
    let message = refusal(|b| {
        let x = b.fill(1.0, Extent::Fixed(4));
        b.named(x, "x");
        b.add_assign(x, x);
    });
    assert_eq!(message, "add_assign: 'x' shares the memory that is overwritten");
}

#[test]
fn slots_of_a_nested_chain_end_with_it() {
    let message = refusal(|b| {
        let x = rows(b, 4);
        let mut inner = None;
        let take = |b: &mut ProgramBuilder, inner: &mut Option<Slot>| {
            let own = b.scale(x, 2.0);
            b.named(own, "own");
            *inner = Some(own);
            vec![]
        };
        b.if_(Condition::RowsAtMost(1), |b| take(b, &mut inner), |_| vec![]);
        b.sum(inner.unwrap());
    });
    assert_eq!(message, "sum: 'own' belongs to a nested chain that has ended");
}

#[test]
fn branches_give_results_of_one_kind() {
    let message = refusal(|b| {
        let x = rows(b, 4);
        b.if_(Condition::RowsAtMost(1), |b| vec![b.copy(x)], |_| vec![]);
    });
    assert_eq!(message, "if: 1 results from one branch, 0 from the other");
    let message = refusal(|b| {
        let (x, y) = (rows(b, 4), b.input("y", Extent::PerRow(5), F32));
        let outs = b.if_(Condition::RowsAtMost(1), |b| vec![b.copy(x)], |_| vec![y]);
        b.mark_output(outs[0]);
    });
    assert_eq!(message, "if: 'y' is [rows, 5], expected [rows, 4]");
}

#[test]
fn a_scan_gives_one_next_value_per_carry() {
    let message = refusal(|b| {
        let (x, carry) = (rows(b, 4), b.fill(0.0, Extent::Fixed(4)));
        b.scan(&[x], &[carry], |_, _, _| ScanValues { carries: vec![], outputs: vec![] });
    });
    assert_eq!(message, "scan: 1 carries, but the body gives 0 next values");
    let message = refusal(|b| {
        let x = b.input("x", Extent::Fixed(4), F32);
        b.scan(&[x], &[], |_, _, _| ScanValues { carries: vec![], outputs: vec![] });
    });
    assert_eq!(message, "scan: 'x' is [4], expected one row per token of the pass");
}

#[test]
fn a_carry_is_taken_over_and_state_is_updated_where_it_is() {
    let mut b = ProgramBuilder::new();
    let x = rows(&mut b, 4);
    let state = b.state("s", Extent::Fixed(4), F32);
    let start = b.fill(0.0, Extent::Fixed(4));
    let input = b.input("start", Extent::Fixed(4), F32);
    let heads = b.split_heads(state, 2);
    let done = b.scan(&[x], &[heads, start, input], |b, rows, carries| {
        let kept = b.scale_assign(carries[0], 0.5);
        let next = b.add(carries[1], rows[0]);
        ScanValues { carries: vec![b.add_assign(kept, rows[0]), next, carries[2]], outputs: vec![carries[2]] }
    });
    let program = b.build().unwrap();
    let steps = program.main().steps();
    let Op::Scan { carries, .. } = &steps.last().unwrap().op else { panic!("the scan is the last step") };
    let root = |slot: Slot| program.root(slot).0;
    assert_eq!([root(carries[0].carry), root(carries[0].next)], [state, state]);
    assert_eq!(carries[1].carry, start);
    assert_ne!(root(carries[1].next), start);
    assert_eq!([root(done.carries[0]), root(done.carries[1])], [state, start]);
    assert!(matches!(steps[steps.len() - 2].op, Op::Copy { x, .. } if x == input), "the input is copied");
    assert_eq!(program.slot(root(done.carries[2])).kind, SlotKind::Temporary);
}

#[test]
fn a_swap_of_carries_goes_through_copies() {
    let mut b = ProgramBuilder::new();
    let x = rows(&mut b, 4);
    let (p, q) = (b.fill(0.0, Extent::Fixed(4)), b.fill(1.0, Extent::Fixed(4)));
    b.scan(&[x], &[p, q], |_, _, carries| ScanValues { carries: vec![carries[1], carries[0]], outputs: vec![] });
    let program = b.build().unwrap();
    let Op::Scan { body, .. } = program.main().steps()[3].op else { panic!("the scan is the last step") };
    assert_eq!(program.chain(body).steps().iter().map(|step| step.op.name()).collect::<Vec<_>>(), ["copy", "copy"]);
}

#[test]
fn what_an_iteration_would_see_changed_is_refused() {
    let message = refusal(|b| {
        let (x, carry) = (rows(b, 4), b.fill(0.0, Extent::Fixed(4)));
        b.named(carry, "carry");
        b.scan(&[x], &[carry], |b, rows, _| {
            let next = b.add(rows[0], carry);
            ScanValues { carries: vec![next], outputs: vec![] }
        });
    });
    assert_eq!(message, "add: 'carry' was overwritten in place by scan");
    let suffix = "cannot be overwritten here: only a whole temporary of the same chain or a carry can";
    let message = refusal(|b| {
        let (x, state) = (rows(b, 4), b.state("s", Extent::Fixed(4), F32));
        b.scan(&[x], &[], |b, rows, _| {
            b.store(rows[0], state);
            ScanValues { carries: vec![], outputs: vec![] }
        });
    });
    assert_eq!(message, format!("store: 's' (state) {suffix}"));
    let message = refusal(|b| {
        let (x, state) = (rows(b, 4), b.state("s", Extent::Fixed(4), F32));
        let part = b.view(state, 0, 2);
        b.scan(&[x], &[part], |_, _, carries| ScanValues { carries: carries.to_vec(), outputs: vec![] });
    });
    assert_eq!(message, format!("scan: 's' (state) {suffix}"));
}

#[test]
fn a_view_of_state_is_stale_after_a_store() {
    let message = refusal(|b| {
        let (x, state) = (b.fill(0.0, Extent::Fixed(4)), b.state("s", Extent::Fixed(4), F32));
        let view = b.view(state, 0, 2);
        b.store(x, state);
        b.sum(state);
        b.sum(view);
    });
    assert_eq!(message, "sum: 's' was overwritten in place by store");
}

#[test]
fn only_temporaries_become_outputs_and_only_in_the_main_chain() {
    let message = refusal(|b| {
        let x = b.input("x", Extent::Fixed(4), F32);
        b.mark_output(x);
    });
    assert_eq!(message, "mark_output: 'x' is a slot of kind input, expected a temporary, marked in the main chain");
    let mut b = ProgramBuilder::new();
    let x = rows(&mut b, 4);
    let heads = b.split_heads(x, 2);
    b.mark_output(heads);
    b.mark_output(heads);
    let program = b.build().unwrap();
    assert_eq!(program.outputs(), [heads]);
    assert_eq!(program.slot(x).kind, SlotKind::Output);
}
