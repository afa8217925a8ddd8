//! The operations of a random program, each with its act.

use plimsoll_program::{Activation, DeltaOperands, Extent, HeadOrder, RouteSpec, Scoring, Slot, Unary};

use super::{Handle, Recorder, WIDTHS};
use crate::interpret::{Arith, Part};

impl Recorder<'_> {
    pub(super) fn unary(&mut self) {
        let Some(x) = self.find(|_| true) else { return };
        let function = self.choices.pick(&[Unary::Tanh, Unary::Neg, Unary::Sigmoid]).unwrap();
        self.like(x, &[], Arith::Unary(function), |b, x, in_place| {
            if in_place { b.unary_assign(x, function) } else { b.unary(x, function) }
        });
    }

    pub(super) fn binary(&mut self) {
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

    pub(super) fn scale(&mut self) {
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

    pub(super) fn linear(&mut self) {
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

    pub(super) fn rms_norm(&mut self) {
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
    pub(super) fn route(&mut self) {
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

    pub(super) fn scale_rows(&mut self) {
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

    pub(super) fn columns(&mut self) {
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
    pub(super) fn free_state(&mut self, elements: usize) -> Option<usize> {
        if self.scans > 0 {
            return None;
        }
        let fits = |&&(_, handle): &&(Slot, usize)| {
            self.handles[handle].extent == Extent::Fixed(elements) && !self.handles[handle].gone
        };
        self.states.iter().find(fits).map(|&(_, handle)| handle)
    }

    pub(super) fn updated(&mut self, state: usize, value: usize) {
        self.lose_root(self.handles[state].root);
        self.handles[state].gone = false;
        self.handles[state].value = value;
    }

    pub(super) fn conv(&mut self) {
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

    pub(super) fn delta(&mut self) {
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

    pub(super) fn glu(&mut self) {
        let Some(gate) = self.find(|_| true) else { return };
        let extent = self.handles[gate].extent;
        let Some(up) = self.find(|handle| handle.extent == extent) else { return };
        let other = self.handles[up].slot;
        let activation = Activation::Sigmoid;
        self.like(gate, &[up], Arith::Glu(activation), |b, x, in_place| {
            if in_place { b.glu_assign(x, other, activation) } else { b.glu(x, other, activation) }
        });
    }

    pub(super) fn regroup(&mut self) {
        let Some(x) = self.find(|_| true) else { return };
        let handle = self.handles[x];
        let groups = if handle.extent.width().is_multiple_of(2) && handle.groups == 1 { 2 } else { 1 };
        let slot = if groups == 1 { self.b.merge_heads(handle.slot) } else { self.b.split_heads(handle.slot, groups) };
        self.handles.push(Handle { slot, groups, ..handle });
    }

    pub(super) fn slice(&mut self) {
        let Some(x) = self.find(|h| matches!(h.extent, Extent::Fixed(n) if n > 2)) else { return };
        let handle = self.handles[x];
        let offset = self.choices.below(handle.extent.width() - 1);
        let value = self.apply(Arith::Slice { offset, len: 2 }, &[handle.value]);
        let slot = self.b.view(handle.slot, offset, 2);
        let extent = Extent::Fixed(2);
        self.handles.push(Handle { slot, value, extent, groups: 1, writable_in: None, ..handle });
    }

    pub(super) fn select_or_sum(&mut self) {
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

    pub(super) fn fill(&mut self) {
        let width = self.choices.pick(&WIDTHS).unwrap();
        let extent =
            self.choices.pick(&[Extent::PerRow(width), Extent::Fixed(width), Extent::PerLogitRow(width)]).unwrap();
        let value = self.choices.below(3) as f32;
        let slot = self.b.fill(value, extent);
        let value = self.apply(Arith::Fill { value, extent }, &[]);
        self.add_fresh(slot, value, extent, 1);
    }

    pub(super) fn store(&mut self) {
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

    pub(super) fn output(&mut self) {
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
}
