//! Random programs, recorded twice: as a program, and as acts over immutable values that an eager evaluator runs.
//!
//! The eager values know no slots, views or overwriting, so they are what the program must compute.

use std::cell::RefCell;

use plimsoll_program::{
    Activation, BuildError, Condition, DType, DeltaOperands, Dims, Extent, HeadOrder, Program, ProgramBuilder,
    RouteSpec, ScanValues, Scoring, Slot, Unary,
};

use crate::interpret::{Arith, Part};

/// Decisions, one byte each; all zero once they are used up.
#[derive(Debug)]
pub(crate) struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn below(&mut self, n: usize) -> usize {
        let Some((&first, rest)) = self.bytes.split_first() else {
            return 0;
        };
        self.bytes = rest;
        first as usize % n
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.below(from.len())]) }
    }
}

/// Something the eager evaluator does. Values go by number.
#[derive(Debug)]
pub(crate) enum Act {
    Apply { arith: Arith, args: Vec<usize>, out: usize },
    If { condition: EagerCondition, then_acts: Vec<Self>, else_acts: Vec<Self>, results: Vec<[usize; 3]> },
    Scan { body: Vec<Self>, rows: Vec<(usize, usize, usize)>, carries: Vec<[usize; 4]>, outputs: Vec<(usize, usize)> },
}

#[derive(Debug)]
pub(crate) enum EagerCondition {
    RowsAtMost(usize),
    Nonzero(usize),
}

/// Runs acts over values that are never overwritten in place.
pub(crate) fn evaluate(acts: &[Act], values: &mut Vec<Vec<f32>>, dims: &Dims) {
    for act in acts {
        match act {
            Act::Apply { arith, args, out } => {
                let args: Vec<&[f32]> = args.iter().map(|&arg| values[arg].as_slice()).collect();
                let result = arith.apply(&args, dims);
                values[*out] = result;
            }
            Act::If { condition, then_acts, else_acts, results } => {
                let holds = match *condition {
                    EagerCondition::RowsAtMost(rows) => dims.rows <= rows,
                    EagerCondition::Nonzero(value) => values[value][0] != 0.0,
                };
                evaluate(if holds { then_acts } else { else_acts }, values, dims);
                for &[then_result, else_result, out] in results {
                    values[out] = values[if holds { then_result } else { else_result }].clone();
                }
            }
            Act::Scan { body, rows, carries, outputs } => {
                // [initial, seen by the body, next, final]
                for &[initial, seen, _, _] in carries {
                    values[seen] = values[initial].clone();
                }
                for &(_, stacked) in outputs {
                    values[stacked] = Vec::new();
                }
                for row in 0..dims.rows {
                    for &(source, shown, width) in rows {
                        values[shown] = values[source][row * width..][..width].to_vec();
                    }
                    evaluate(body, values, dims);
                    for &(result, stacked) in outputs {
                        let result = values[result].clone();
                        values[stacked].extend(result);
                    }
                    let next: Vec<Vec<f32>> = carries.iter().map(|carry| values[carry[2]].clone()).collect();
                    for (&[_, seen, _, _], next) in carries.iter().zip(next) {
                        values[seen] = next;
                    }
                }
                for &[_, seen, _, last] in carries {
                    values[last] = values[seen].clone();
                }
            }
        }
    }
}

/// A slot and its eager value.
#[derive(Debug, Clone, Copy)]
struct Handle {
    slot: Slot,
    value: usize,
    extent: Extent,
    groups: usize,
    /// Handles of one root lose their value together.
    root: usize,
    /// The chain that may overwrite it in place; `None` if none may.
    writable_in: Option<usize>,
    /// A carry that is state of the sequence.
    of_state: bool,
    gone: bool,
}

/// What was recorded.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) program: Result<Program, BuildError>,
    pub(crate) acts: Vec<Act>,
    pub(crate) value_count: usize,
    /// Slot and value of constants, inputs and state before the pass.
    pub(crate) given: Vec<(Slot, usize)>,
    /// Slot and value of outputs and state after the pass.
    pub(crate) expected: Vec<(Slot, usize)>,
}

const WIDTHS: [usize; 4] = [1, 2, 4, 6];
const DEPTH: usize = 3;

/// Records one program.
#[derive(Debug)]
pub(crate) struct Recorder<'a> {
    b: ProgramBuilder,
    choices: Choices<'a>,
    handles: Vec<Handle>,
    weights: Vec<(Slot, usize, [usize; 2])>,
    vectors: Vec<(Slot, usize, usize)>,
    /// Weights of four experts.
    experts: Vec<(Slot, usize, [usize; 2])>,
    /// Convolution taps of 8 and of 12 elements.
    taps: Vec<(Slot, usize, usize)>,
    logit_rows: (Slot, usize),
    states: Vec<(Slot, usize)>,
    acts: Vec<Act>,
    values: usize,
    roots: usize,
    /// Chains being recorded.
    chain: Vec<usize>,
    chains: usize,
    scans: usize,
    outputs: Vec<(Slot, usize)>,
}

impl<'a> Recorder<'a> {
    pub(crate) fn record(bytes: &'a [u8]) -> Recorded {
        let mut b = ProgramBuilder::new();
        let mut values = 0;
        let mut given = Vec::new();
        let mut fresh = |slot: Slot, given: &mut Vec<(Slot, usize)>| {
            given.push((slot, values));
            values += 1;
            values - 1
        };
        let mut weights = Vec::new();
        let mut vectors = Vec::new();
        let mut handles = Vec::new();
        let readable = |slot, value, extent| Handle {
            slot,
            value,
            extent,
            groups: 1,
            root: value,
            writable_in: None,
            of_state: false,
            gone: false,
        };
        for out_features in WIDTHS {
            for in_features in WIDTHS {
                let slot =
                    b.constant(format!("w.{out_features}.{in_features}"), &[out_features, in_features], DType::F32);
                weights.push((slot, fresh(slot, &mut given), [out_features, in_features]));
            }
            let slot = b.constant(format!("v.{out_features}"), &[out_features], DType::F32);
            let value = fresh(slot, &mut given);
            vectors.push((slot, value, out_features));
            handles.push(readable(slot, value, Extent::Fixed(out_features)));
        }
        let mut experts = Vec::new();
        for [out_features, in_features] in [[4, 4], [2, 6], [1, 2], [6, 1]] {
            let name = format!("e.{out_features}.{in_features}");
            let slot = b.constant(name, &[4, out_features, in_features], DType::F32);
            experts.push((slot, fresh(slot, &mut given), [out_features, in_features]));
        }
        let mut taps = Vec::new();
        for elements in [6, 8, 12] {
            let slot = b.constant(format!("t.{elements}"), &[elements], DType::F32);
            taps.push((slot, fresh(slot, &mut given), elements));
        }
        for (name, extent) in [("a", Extent::PerRow(4)), ("b", Extent::PerRow(6)), ("c", Extent::Fixed(6))] {
            let slot = b.input(name, extent, DType::F32);
            let value = fresh(slot, &mut given);
            handles.push(readable(slot, value, extent));
        }
        let slot = b.input("logit_rows", Extent::PerLogitRow(1), DType::U32);
        let logit_rows = (slot, fresh(slot, &mut given));
        let mut states = Vec::new();
        for (name, width) in [("s4", 4), ("s6", 6)] {
            let slot = b.state(name, Extent::Fixed(width), DType::F32);
            let value = fresh(slot, &mut given);
            states.push((slot, handles.len()));
            handles.push(readable(slot, value, Extent::Fixed(width)));
        }
        let choices = Choices::new(bytes);
        let mut recorder = Self {
            b,
            choices,
            handles,
            weights,
            vectors,
            experts,
            taps,
            logit_rows,
            states,
            acts: Vec::new(),
            values,
            roots: values,
            chain: vec![0],
            chains: 1,
            scans: 0,
            outputs: Vec::new(),
        };
        while !recorder.choices.bytes.is_empty() {
            recorder.act();
        }
        recorder.output();
        let mut expected = recorder.outputs;
        for &(slot, handle) in &recorder.states {
            expected.push((slot, recorder.handles[handle].value));
        }
        let (program, acts, value_count) = (recorder.b.build(), recorder.acts, recorder.values);
        Recorded { program, acts, value_count, given, expected }
    }

    fn value(&mut self) -> usize {
        self.values += 1;
        self.values - 1
    }

    fn here(&self) -> usize {
        self.chain[self.chain.len() - 1]
    }

    fn find(&mut self, wanted: impl Fn(&Handle) -> bool) -> Option<usize> {
        let found: Vec<usize> =
            (0..self.handles.len()).filter(|&i| !self.handles[i].gone && wanted(&self.handles[i])).collect();
        // The latest handles first, so that values chain up.
        let recent: Vec<usize> = found.into_iter().rev().take(6).collect();
        self.choices.pick(&recent)
    }

    fn lose_root(&mut self, root: usize) {
        for handle in &mut self.handles {
            handle.gone |= handle.root == root;
        }
    }

    fn add_fresh(&mut self, slot: Slot, value: usize, extent: Extent, groups: usize) {
        self.roots += 1;
        let (root, writable_in) = (self.roots, Some(self.here()));
        self.handles.push(Handle { slot, value, extent, groups, root, writable_in, of_state: false, gone: false });
    }

    fn apply(&mut self, arith: Arith, args: &[usize]) -> usize {
        let out = self.value();
        self.acts.push(Act::Apply { arith, args: args.to_vec(), out });
        out
    }

    /// Records one operation like its first operand, in place if that is asked for and allowed.
    fn like(
        &mut self,
        x: usize,
        others: &[usize],
        arith: Arith,
        record: impl FnOnce(&mut ProgramBuilder, Slot, bool) -> Slot,
    ) {
        let handle = self.handles[x];
        let shares = others.iter().any(|&other| self.handles[other].root == handle.root);
        let in_place = handle.writable_in == Some(self.here()) && !shares && self.choices.below(2) == 0;
        let args: Vec<usize> = [x].iter().chain(others).map(|&i| self.handles[i].value).collect();
        let value = self.apply(arith, &args);
        let slot = record(&mut self.b, handle.slot, in_place);
        if in_place {
            self.lose_root(handle.root);
            self.handles.push(Handle { slot, value, ..handle });
        } else {
            self.add_fresh(slot, value, handle.extent, handle.groups);
        }
    }

    fn act(&mut self) {
        let nested = self.chain.len() <= DEPTH;
        match self.choices.below(if nested { 23 } else { 19 }) {
            0 => self.unary(),
            1 | 2 => self.binary(),
            3 => self.scale(),
            4 | 5 => self.linear(),
            6 => self.rms_norm(),
            7 => self.glu(),
            8 => self.regroup(),
            9 => self.slice(),
            10 => self.select_or_sum(),
            11 => self.fill(),
            12 => self.store(),
            13 => self.output(),
            14 => self.route(),
            15 => self.scale_rows(),
            16 => self.columns(),
            17 => self.conv(),
            18 => self.delta(),
            19 | 20 => self.branch(),
            _ => self.scan(),
        }
    }

    fn unary(&mut self) {
        let Some(x) = self.find(|_| true) else { return };
        let function = self.choices.pick(&[Unary::Tanh, Unary::Neg, Unary::Sigmoid]).unwrap();
        self.like(x, &[], Arith::Unary(function), |b, x, in_place| {
            if in_place { b.unary_assign(x, function) } else { b.unary(x, function) }
        });
    }

    fn binary(&mut self) {
        let Some(a) = self.find(|_| true) else { return };
        let extent = self.handles[a].extent;
        let broadcast = Extent::Fixed(extent.width());
        let Some(b) = self.find(|handle| handle.extent == extent || handle.extent == broadcast) else { return };
        let other = self.handles[b].slot;
        if self.choices.below(2) == 0 {
            self.like(
                a,
                &[b],
                Arith::Add,
                |b, x, in_place| {
                    if in_place { b.add_assign(x, other) } else { b.add(x, other) }
                },
            );
        } else {
            self.like(
                a,
                &[b],
                Arith::Mul,
                |b, x, in_place| {
                    if in_place { b.mul_assign(x, other) } else { b.mul(x, other) }
                },
            );
        }
        // Keeps values from growing without bound.
        let last = self.handles.len() - 1;
        self.like(
            last,
            &[],
            Arith::Softcap(3.0),
            |b, x, in_place| {
                if in_place { b.softcap_assign(x, 3.0) } else { b.softcap(x, 3.0) }
            },
        );
    }

    fn scale(&mut self) {
        let Some(x) = self.find(|_| true) else { return };
        self.like(
            x,
            &[],
            Arith::Scale(0.75),
            |b, x, in_place| {
                if in_place { b.scale_assign(x, 0.75) } else { b.scale(x, 0.75) }
            },
        );
    }

    fn linear(&mut self) {
        let Some(x) = self.find(|_| true) else { return };
        let Handle { slot, value, extent, .. } = self.handles[x];
        let fitting: Vec<_> = self.weights.iter().copied().filter(|(_, _, s)| s[1] == extent.width()).collect();
        let parts = 1 + self.choices.below(3);
        let mut weights = Vec::new();
        let mut made = Vec::new();
        for _ in 0..parts {
            let Some((weight, weight_value, shape)) = self.choices.pick(&fitting) else { return };
            let bias = self.vectors.iter().copied().find(|v| v.2 == shape[0]).filter(|_| self.choices.below(2) == 0);
            weights.push((weight, bias.map(|bias| bias.0)));
            let args: Vec<usize> = [value, weight_value].into_iter().chain(bias.map(|bias| bias.1)).collect();
            let arith = Arith::Linear { in_features: shape[1], bias: bias.is_some() };
            made.push((self.apply(arith, &args), shape[0]));
        }
        let outs = self.b.linear_many(slot, &weights);
        for (out, (value, width)) in outs.into_iter().zip(made) {
            self.add_fresh(out, value, extent.with_width(width), 1);
            let last = self.handles.len() - 1;
            self.like(last, &[], Arith::Unary(Unary::Tanh), |b, x, in_place| {
                if in_place { b.unary_assign(x, Unary::Tanh) } else { b.unary(x, Unary::Tanh) }
            });
        }
    }

    fn rms_norm(&mut self) {
        let Some(x) = self.find(|_| true) else { return };
        let Handle { extent, groups, value, slot, writable_in, .. } = self.handles[x];
        let head_dim = extent.width() / groups;
        let Some(&(weight, weight_value, _)) = self.vectors.iter().find(|v| v.2 == head_dim) else { return };
        let arith = Arith::RmsNorm { eps: 1e-3, head_dim };
        let new = self.apply(arith, &[value, weight_value]);
        if writable_in == Some(self.here()) && self.choices.below(2) == 0 {
            let out = self.b.rms_norm_assign(slot, weight, 1e-3);
            let handle = self.handles[x];
            self.lose_root(handle.root);
            self.handles.push(Handle { slot: out, value: new, ..handle });
        } else {
            let out = self.b.rms_norm(slot, weight, 1e-3);
            self.add_fresh(out, new, extent, groups);
        }
    }

    /// Experts of a random router, combined.
    fn route(&mut self) {
        let Some(router) = self.find(|handle| handle.extent.width() == 4) else { return };
        let logits = self.handles[router];
        let Some(x) = self.find(|handle| handle.extent.same_rows(logits.extent)) else { return };
        let x = self.handles[x];
        let spec = RouteSpec {
            k: 1 + self.choices.below(4),
            scoring: self.choices.pick(&[Scoring::Softmax, Scoring::Sigmoid]).unwrap(),
            normalize: self.choices.below(2) == 0,
            scale: 1.5,
        };
        let k = spec.k;
        let (ids, weights) = self.b.top_k(logits.slot, spec);
        let route = |part| Arith::TopK { spec, experts: 4, part };
        let id_values = self.apply(route(Part::First), &[logits.value]);
        let weight_values = self.apply(route(Part::Second), &[logits.value]);
        self.add_fresh(weights, weight_values, logits.extent.with_width(k), 1);
        let width = x.extent.width();
        let fitting: Vec<_> = self.experts.iter().copied().filter(|e| e.2[1] == width || e.2[1] * k == width).collect();
        let Some((weight, weight_value, [out_features, in_features])) = self.choices.pick(&fitting) else { return };
        let products = self.b.expert_linear(x.slot, ids, weight);
        let arith = Arith::Experts { k, out_features, in_features };
        let values = self.apply(arith, &[x.value, id_values, weight_value]);
        self.add_fresh(products, values, x.extent.with_width(k * out_features), k);
        let sum = self.b.combine_experts(products, weights);
        let values = self.apply(Arith::Combine { k }, &[values, weight_values]);
        let values = self.apply(Arith::Unary(Unary::Tanh), &[values]);
        let sum = self.b.unary_assign(sum, Unary::Tanh);
        self.add_fresh(sum, values, x.extent.with_width(out_features), 1);
    }

    fn scale_rows(&mut self) {
        let Some(x) = self.find(|_| true) else { return };
        let extent = self.handles[x].extent;
        let Some(factor) = self.find(|handle| handle.extent == extent.with_width(1)) else { return };
        let other = self.handles[factor].slot;
        self.like(x, &[factor], Arith::ScaleRows { width: extent.width() }, |b, x, in_place| {
            if in_place { b.scale_rows_assign(x, other) } else { b.scale_rows(x, other) }
        });
        let last = self.handles.len() - 1;
        self.like(last, &[], Arith::Unary(Unary::Tanh), |b, x, in_place| {
            if in_place { b.unary_assign(x, Unary::Tanh) } else { b.unary(x, Unary::Tanh) }
        });
    }

    fn columns(&mut self) {
        let Some(x) = self.find(|handle| handle.extent.width() / handle.groups > 1) else { return };
        let Handle { slot, value, extent, groups, .. } = self.handles[x];
        let head_dim = extent.width() / groups;
        let offset = self.choices.below(head_dim);
        let len = 1 + self.choices.below(head_dim - offset);
        let value = self.apply(Arith::Columns { head_dim, offset, len }, &[value]);
        let out = self.b.select_columns(slot, offset, len);
        self.add_fresh(out, value, extent.with_width(groups * len), groups);
    }

    /// Which state has this many elements, and may be updated now.
    fn free_state(&mut self, elements: usize) -> Option<usize> {
        if self.scans > 0 {
            return None;
        }
        let fits = |&&(_, handle): &&(Slot, usize)| {
            self.handles[handle].extent == Extent::Fixed(elements) && !self.handles[handle].gone
        };
        self.states.iter().find(fits).map(|&(_, handle)| handle)
    }

    fn updated(&mut self, state: usize, value: usize) {
        self.lose_root(self.handles[state].root);
        self.handles[state].gone = false;
        self.handles[state].value = value;
    }

    fn conv(&mut self) {
        let Some(x) = self.find(|h| matches!(h.extent, Extent::PerRow(1 | 2 | 4 | 6))) else { return };
        let Handle { slot, value, extent, groups, .. } = self.handles[x];
        let channels = extent.width();
        let fitting: Vec<_> = self.taps.iter().copied().filter(|tap| tap.2.is_multiple_of(channels)).collect();
        let Some((weight, weight_value, taps)) = self.choices.pick(&fitting) else { return };
        let Some(state) = self.free_state(taps - channels) else { return };
        let bias = self.vectors.iter().copied().find(|v| v.2 == channels).filter(|_| self.choices.below(2) == 0);
        let state_slot = self.handles[state].slot;
        let args: Vec<usize> =
            [value, weight_value, self.handles[state].value].into_iter().chain(bias.map(|bias| bias.1)).collect();
        let rows = self.apply(Arith::Conv { channels, part: Part::Second }, &args);
        let after = self.apply(Arith::Conv { channels, part: Part::First }, &args);
        let out = self.b.causal_conv(0, slot, weight, bias.map(|bias| bias.0), state_slot);
        self.updated(state, after);
        let rows = self.apply(Arith::Unary(Unary::Tanh), &[rows]);
        let out = self.b.unary_assign(out, Unary::Tanh);
        self.add_fresh(out, rows, extent, groups);
    }

    fn delta(&mut self) {
        let Some(q) = self.find(|h| matches!(h.extent, Extent::PerRow(_))) else { return };
        let q = self.handles[q];
        let Some(k) = self.find(|h| h.extent == q.extent && h.groups == q.groups) else { return };
        let (key_heads, head_dim) = (q.groups, q.extent.width() / q.groups);
        let Some(v) = self.find(|h| matches!(h.extent, Extent::PerRow(_)) && h.groups.is_multiple_of(key_heads)) else {
            return;
        };
        let (k, v) = (self.handles[k], self.handles[v]);
        let (value_heads, v_head_dim) = (v.groups, v.extent.width() / v.groups);
        let Some(state) = self.free_state(head_dim * v.extent.width()) else { return };
        let per_head = Extent::PerRow(value_heads);
        let (decay, beta) = (self.matching(per_head, 1), self.matching(per_head, 1));
        // Decays are made small, so that values do not grow.
        let slot = self.b.unary(decay.slot, Unary::Softplus);
        let slot = self.b.unary_assign(slot, Unary::Neg);
        let decays = self.apply(Arith::Unary(Unary::Softplus), &[decay.value]);
        let decays = self.apply(Arith::Unary(Unary::Neg), &[decays]);
        let state_slot = self.handles[state].slot;
        let args = [q.value, k.value, v.value, decays, beta.value, self.handles[state].value];
        let order = self.choices.pick(&[HeadOrder::Grouped, HeadOrder::Tiled]).unwrap();
        let arith = |part| Arith::Delta { key_heads, head_dim, value_heads, v_head_dim, order, part };
        let (rows, after) = (self.apply(arith(Part::Second), &args), self.apply(arith(Part::First), &args));
        let operands = DeltaOperands { q: q.slot, k: k.slot, v: v.slot, decay: slot, beta: beta.slot, order };
        let out = self.b.gated_delta(0, operands, state_slot);
        self.updated(state, after);
        let rows = self.apply(Arith::Unary(Unary::Tanh), &[rows]);
        let out = self.b.unary_assign(out, Unary::Tanh);
        self.add_fresh(out, rows, v.extent, value_heads);
    }

    fn glu(&mut self) {
        let Some(gate) = self.find(|_| true) else { return };
        let extent = self.handles[gate].extent;
        let Some(up) = self.find(|handle| handle.extent == extent) else { return };
        let other = self.handles[up].slot;
        let activation = Activation::Sigmoid;
        self.like(gate, &[up], Arith::Glu(activation), |b, x, in_place| {
            if in_place { b.glu_assign(x, other, activation) } else { b.glu(x, other, activation) }
        });
    }

    fn regroup(&mut self) {
        let Some(x) = self.find(|_| true) else { return };
        let handle = self.handles[x];
        let groups = if handle.extent.width().is_multiple_of(2) && handle.groups == 1 { 2 } else { 1 };
        let slot = if groups == 1 { self.b.merge_heads(handle.slot) } else { self.b.split_heads(handle.slot, groups) };
        self.handles.push(Handle { slot, groups, ..handle });
    }

    fn slice(&mut self) {
        let Some(x) = self.find(|h| matches!(h.extent, Extent::Fixed(n) if n > 2)) else { return };
        let handle = self.handles[x];
        let offset = self.choices.below(handle.extent.width() - 1);
        let value = self.apply(Arith::Slice { offset, len: 2 }, &[handle.value]);
        let slot = self.b.view(handle.slot, offset, 2);
        let extent = Extent::Fixed(2);
        self.handles.push(Handle { slot, value, extent, groups: 1, writable_in: None, ..handle });
    }

    fn select_or_sum(&mut self) {
        if self.choices.below(2) == 0 {
            let Some(x) = self.find(|h| matches!(h.extent, Extent::PerRow(_))) else { return };
            let Handle { slot, value, extent, groups, .. } = self.handles[x];
            let width = extent.width();
            let selected = self.apply(Arith::Select { width }, &[value, self.logit_rows.1]);
            let out = self.b.select_rows(slot, self.logit_rows.0);
            self.add_fresh(out, selected, Extent::PerLogitRow(width), groups);
        } else {
            let Some(x) = self.find(|_| true) else { return };
            let Handle { slot, value, .. } = self.handles[x];
            let sum = self.apply(Arith::Sum, &[value]);
            let sum = self.apply(Arith::Unary(Unary::Tanh), &[sum]);
            let out = self.b.sum(slot);
            let out = self.b.unary_assign(out, Unary::Tanh);
            self.add_fresh(out, sum, Extent::Fixed(1), 1);
        }
    }

    fn fill(&mut self) {
        let width = self.choices.pick(&WIDTHS).unwrap();
        let extent =
            self.choices.pick(&[Extent::PerRow(width), Extent::Fixed(width), Extent::PerLogitRow(width)]).unwrap();
        let value = self.choices.below(3) as f32;
        let slot = self.b.fill(value, extent);
        let value = self.apply(Arith::Fill { value, extent }, &[]);
        self.add_fresh(slot, value, extent, 1);
    }

    fn store(&mut self) {
        // Refused in the body of a scan.
        if self.scans > 0 {
            return;
        }
        let (state, handle) = self.states[self.choices.below(self.states.len())];
        let Handle { root, extent, gone, .. } = self.handles[handle];
        let Some(x) = self.find(|h| h.extent == extent && h.root != root) else { return };
        if gone {
            return;
        }
        let value = self.apply(Arith::Copy, &[self.handles[x].value]);
        self.b.store(self.handles[x].slot, state);
        self.lose_root(root);
        self.handles[handle].gone = false;
        self.handles[handle].value = value;
    }

    fn output(&mut self) {
        if self.chain.len() > 1 {
            return;
        }
        let Some(x) = self.find(|handle| handle.writable_in == Some(0)) else { return };
        let Handle { slot, value, root, .. } = self.handles[x];
        self.b.mark_output(slot);
        self.outputs.push((slot, value));
        for handle in self.handles.iter_mut().filter(|handle| handle.root == root) {
            handle.writable_in = None;
        }
    }

    /// Records a nested chain; its own handles end with it.
    fn nest<R>(&mut self, inner: impl FnOnce(&mut Self) -> R) -> (Vec<Act>, R) {
        let outer = std::mem::take(&mut self.acts);
        self.chain.push(self.chains);
        self.chains += 1;
        let result = inner(self);
        self.chain.pop();
        (std::mem::replace(&mut self.acts, outer), result)
    }

    /// Lends the builder's closures this recorder: the builder moves in, and out again at the end.
    fn within<R>(&mut self, b: &mut ProgramBuilder, inner: impl FnOnce(&mut Self) -> R) -> R {
        std::mem::swap(&mut self.b, b);
        let result = inner(self);
        std::mem::swap(&mut self.b, b);
        result
    }

    fn some_acts(&mut self) {
        for _ in 0..1 + self.choices.below(4) {
            self.act();
        }
    }

    fn branch(&mut self) {
        let condition = self.find(|h| h.extent == Extent::Fixed(1)).filter(|_| self.choices.below(2) == 0);
        let (eager, condition) = match condition {
            Some(i) => (EagerCondition::Nonzero(self.handles[i].value), Condition::Nonzero(self.handles[i].slot)),
            None => {
                let rows = self.choices.below(6);
                (EagerCondition::RowsAtMost(rows), Condition::RowsAtMost(rows))
            }
        };
        let mut b = std::mem::take(&mut self.b);
        let before = self.handles.len();
        let states_before = self.state_values();
        let recorder = RefCell::new(self);
        let then_side = RefCell::new(None);
        let else_side = RefCell::new(None);
        let outs = b.if_(
            condition,
            |b| {
                let mut recorder = recorder.borrow_mut();
                recorder.within(b, |this| {
                    let (acts, results) = this.nest(|this| {
                        this.some_acts();
                        let wanted = this.choices.below(3);
                        let found: Vec<usize> = (0..wanted).filter_map(|_| this.find(|_| true)).collect();
                        found.into_iter().map(|i| this.handles[i]).collect::<Vec<_>>()
                    });
                    this.handles.truncate(before);
                    let slots = results.iter().map(|handle| handle.slot).collect();
                    then_side.replace(Some((acts, results, this.state_values())));
                    this.set_state_values(&states_before);
                    slots
                })
            },
            |b| {
                let mut recorder = recorder.borrow_mut();
                recorder.within(b, |this| {
                    let then_side = then_side.borrow();
                    let (_, then_results, _) = then_side.as_ref().unwrap();
                    let (acts, results) = this.nest(|this| {
                        this.some_acts();
                        then_results.iter().map(|like| this.matching(like.extent, like.groups)).collect::<Vec<_>>()
                    });
                    this.handles.truncate(before);
                    let slots = results.iter().map(|handle| handle.slot).collect();
                    else_side.replace(Some((acts, results, this.state_values())));
                    slots
                })
            },
        );
        let this = recorder.into_inner();
        this.b = b;
        let (then_acts, then_results, then_states) = then_side.into_inner().unwrap();
        let (else_acts, else_results, else_states) = else_side.into_inner().unwrap();
        let mut results = Vec::new();
        for ((out, then_result), else_result) in outs.into_iter().zip(then_results).zip(else_results) {
            let value = this.value();
            results.push([then_result.value, else_result.value, value]);
            this.add_fresh(out, value, then_result.extent, then_result.groups);
        }
        let mut states = Vec::new();
        for (then_state, else_state) in then_states.into_iter().zip(else_states) {
            let value = if then_state == else_state { then_state } else { this.value() };
            if then_state != else_state {
                results.push([then_state, else_state, value]);
            }
            states.push(value);
        }
        this.set_state_values(&states);
        this.acts.push(Act::If { condition: eager, then_acts, else_acts, results });
    }

    fn state_values(&self) -> Vec<usize> {
        self.states.iter().map(|&(_, handle)| self.handles[handle].value).collect()
    }

    fn set_state_values(&mut self, values: &[usize]) {
        for (&(_, handle), &value) in self.states.iter().zip(values) {
            self.handles[handle].value = value;
        }
    }

    /// A handle of a given extent, made if there is none.
    fn matching(&mut self, extent: Extent, groups: usize) -> Handle {
        if let Some(i) = self.find(|h| h.extent == extent && h.groups == groups) {
            return self.handles[i];
        }
        let slot = self.b.fill(0.5, extent);
        let value = self.apply(Arith::Fill { value: 0.5, extent }, &[]);
        let slot = self.b.split_heads(slot, groups);
        self.add_fresh(slot, value, extent, groups);
        self.handles[self.handles.len() - 1]
    }

    fn scan(&mut self) {
        let wanted = 1 + self.choices.below(2);
        let mut sources: Vec<Handle> = Vec::new();
        for _ in 0..wanted {
            let found = self.find(|h| matches!(h.extent, Extent::PerRow(_)));
            sources.extend(found.map(|i| self.handles[i]));
        }
        let here = self.here();
        let mut carries: Vec<Handle> = Vec::new();
        for _ in 0..self.choices.below(4) {
            let roots: Vec<usize> = carries.iter().map(|carry| carry.root).collect();
            let states: Vec<Slot> = self.states.iter().map(|state| state.0).collect();
            let nested = self.scans > 0;
            let found = self.find(|h| {
                // State of the sequence is carried by the outermost scan, then by that scan's carry in its body.
                let refused = nested && states.contains(&h.slot) || h.of_state && h.writable_in != Some(here);
                matches!(h.extent, Extent::Fixed(_)) && !roots.contains(&h.root) && !refused
            });
            carries.extend(found.map(|i| self.handles[i]));
        }
        let state_roots: Vec<usize> = self.states.iter().map(|&(_, handle)| self.handles[handle].root).collect();
        let states: Vec<Slot> = self.states.iter().map(|state| state.0).collect();
        carries.retain(|c| !state_roots.contains(&c.root) || states.contains(&c.slot));
        for carry in &carries {
            let taken = sources.iter().any(|source| source.root == carry.root);
            if carry.writable_in == Some(here) && !taken || states.contains(&carry.slot) {
                self.lose_root(carry.root);
            }
        }
        let before = self.handles.len();
        let source_slots: Vec<Slot> = sources.iter().map(|source| source.slot).collect();
        let carry_slots: Vec<Slot> = carries.iter().map(|carry| carry.slot).collect();
        let mut b = std::mem::take(&mut self.b);
        let mut inner = None;
        let done = b.scan(&source_slots, &carry_slots, |b, rows, shown| {
            self.within(b, |this| {
                this.scans += 1;
                let (acts, (values, yielded)) = this.nest(|this| this.body(&sources, rows, &carries, shown));
                this.scans -= 1;
                this.handles.truncate(before);
                inner = Some((acts, values));
                yielded
            })
        });
        self.b = b;
        let (body, (rows, carry_values, results)) = inner.unwrap();
        let mut numbered = Vec::new();
        for ((carry, &[seen, next]), &slot) in carries.iter().zip(&carry_values).zip(&done.carries) {
            let last = self.value();
            numbered.push([carry.value, seen, next, last]);
            if let Some(&(_, state)) = self.states.iter().find(|state| state.0 == carry.slot) {
                self.handles[state].gone = false;
                self.handles[state].value = last;
            } else {
                self.add_fresh(slot, last, carry.extent, carry.groups);
                let made = self.handles.len() - 1;
                self.handles[made].of_state = carry.of_state;
            }
        }
        let mut outputs = Vec::new();
        for (result, &slot) in results.iter().zip(&done.outputs) {
            let stacked = self.value();
            outputs.push((result.value, stacked));
            self.add_fresh(slot, stacked, Extent::PerRow(result.extent.width()), result.groups);
        }
        self.acts.push(Act::Scan { body, rows, carries: numbered, outputs });
    }

    #[expect(clippy::type_complexity, reason = "values of rows, carries and results, then what the builder gets")]
    fn body(
        &mut self,
        sources: &[Handle],
        rows: &[Slot],
        carries: &[Handle],
        shown: &[Slot],
    ) -> ((Vec<(usize, usize, usize)>, Vec<[usize; 2]>, Vec<Handle>), ScanValues) {
        let mut row_values = Vec::new();
        for (source, &slot) in sources.iter().zip(rows) {
            let (value, width) = (self.value(), source.extent.width());
            row_values.push((source.value, value, width));
            self.add_fresh(slot, value, Extent::Fixed(width), source.groups);
        }
        let mut seen = Vec::new();
        for (carry, &slot) in carries.iter().zip(shown) {
            let value = self.value();
            seen.push(value);
            self.add_fresh(slot, value, carry.extent, carry.groups);
            let last = self.handles.len() - 1;
            self.handles[last].of_state = carry.of_state || self.states.iter().any(|state| state.0 == carry.slot);
        }
        self.some_acts();
        let next: Vec<Handle> = carries.iter().map(|carry| self.next_of(carry.extent)).collect();
        let wanted = self.choices.below(3);
        let mut results: Vec<Handle> = Vec::new();
        for _ in 0..wanted {
            let found = self.find(|h| matches!(h.extent, Extent::Fixed(_)));
            results.extend(found.map(|i| self.handles[i]));
        }
        let yielded = ScanValues {
            carries: next.iter().map(|handle| handle.slot).collect(),
            outputs: results.iter().map(|handle| handle.slot).collect(),
        };
        let carry_values = seen.into_iter().zip(&next).map(|(seen, next)| [seen, next.value]).collect();
        ((row_values, carry_values, results), yielded)
    }

    fn next_of(&mut self, extent: Extent) -> Handle {
        match self.find(|h| h.extent == extent) {
            Some(i) => self.handles[i],
            None => self.matching(extent, 1),
        }
    }
}
