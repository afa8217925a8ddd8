//! What an executor asks of a program before it runs it: that every state a step names is what the sequence holds for its layer.

use super::pass::ExecError;
use crate::arch::{Architecture, LayerState};
use plimsoll_program::{Dims, Op, Program, SlotKind, Step};
use std::ops::Range;

/// Refuses what cannot run: state that is neither KV nor that of a recurrent step; such steps where they do not run once per pass (a scan, or
/// for recurrent state a branch); and layers whose state the architecture describes otherwise.
pub(crate) fn check_steps(architecture: &Architecture) -> Result<(), ExecError> {
    let program = &architecture.program;
    let mut parts: Vec<(&Step, usize, Range<usize>)> = Vec::new();
    for step in program.chains().iter().flat_map(|chain| chain.steps()) {
        let fault = |reason| ExecError::Step { step: step.id.index(), op: step.op.name(), reason };
        match step.op {
            Op::Attend { layer, k, v, .. } => {
                if in_scan(program, step) {
                    return Err(fault("attention inside of a scan has no rows to append"));
                }
                let (k, v) = (program.slot(k), program.slot(v));
                let fits = |state: &LayerState| match state {
                    LayerState::Kv(shape) => {
                        (shape.kv_heads, shape.head_dim, shape.v_head_dim) == (k.groups, k.head_dim(), v.head_dim())
                    }
                    LayerState::Recurrent(_) | LayerState::Stateless => false,
                };
                if !architecture.layers.get(layer).is_some_and(fits) {
                    return Err(fault("the layer is not described as one that keeps these keys and values"));
                }
            }
            Op::CausalConv { layer, state, .. } | Op::GatedDelta { layer, state, .. } => {
                if program.parent(program.position(step.id).0).is_some() {
                    return Err(fault("recurrent state is updated once per pass, not in a branch or scan"));
                }
                let (root, start) = program.root(state);
                let elements = program.elements(root, &Dims { rows: 0, logit_rows: 0, kv_len: 0 });
                let fits = |state: &LayerState| match state {
                    LayerState::Recurrent(spec) => spec.elements == elements,
                    LayerState::Kv(_) | LayerState::Stateless => false,
                };
                if !architecture.layers.get(layer).is_some_and(fits) {
                    return Err(fault("the layer is not described as one that keeps this state"));
                }
                parts.push((step, layer, start..start + program.slot(state).extent.width()));
            }
            _ => {
                let mut named = false;
                step.op.visit(|slot, _| named |= program.slot(program.root(slot).0).kind == SlotKind::State);
                if named {
                    return Err(fault("state other than keys and values is kept for recurrent steps only"));
                }
            }
        }
    }
    check_parts(architecture, parts)
}

/// The steps of a layer update each element of its state once: an element that none wrote would come out as anything.
fn check_parts(architecture: &Architecture, mut parts: Vec<(&Step, usize, Range<usize>)>) -> Result<(), ExecError> {
    parts.sort_by_key(|(_, layer, part)| (*layer, part.start, part.end));
    for parts in parts.chunk_by(|a, b| a.1 == b.1) {
        let mut end = 0;
        let whole = parts.iter().all(|(_, _, part)| std::mem::replace(&mut end, part.end) == part.start);
        let (step, layer, _) = parts[0];
        let elements = match architecture.layers[layer] {
            LayerState::Recurrent(spec) => spec.elements,
            LayerState::Kv(_) | LayerState::Stateless => unreachable!("checked with the step"),
        };
        if !whole || end != elements {
            let reason = "the steps of the layer do not update each element of its state once";
            return Err(ExecError::Step { step: step.id.index(), op: step.op.name(), reason });
        }
    }
    Ok(())
}

fn in_scan(program: &Program, step: &Step) -> bool {
    std::iter::successors(program.parent(program.position(step.id).0), |&parent| {
        program.parent(program.position(parent).0)
    })
    .any(|parent| matches!(program.step(parent).op, Op::Scan { .. }))
}
