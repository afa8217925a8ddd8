//! Operations whose result can take the memory of their first operand.

use super::ProgramBuilder;
use super::check::{Reject, Value};
use super::ops::Dest;
use crate::{Activation, BuildError, Extent, Op, RopeLayout, Slot, Unary};

impl ProgramBuilder {
    /// [`add`](Self::add) in the memory of `a`.
    pub fn add_assign(&mut self, a: Slot, b: Slot) -> Slot {
        self.binary_to(Dest::InPlace, "add_assign", a, b, |a, b, out| Op::Add { a, b, out })
    }

    /// [`mul`](Self::mul) in the memory of `a`.
    pub fn mul_assign(&mut self, a: Slot, b: Slot) -> Slot {
        self.binary_to(Dest::InPlace, "mul_assign", a, b, |a, b, out| Op::Mul { a, b, out })
    }

    /// [`scale`](Self::scale) in the memory of `x`.
    pub fn scale_assign(&mut self, x: Slot, factor: f32) -> Slot {
        self.map_to(Dest::InPlace, "scale_assign", x, |x, out| Op::Scale { x, factor, out })
    }

    /// [`softcap`](Self::softcap) in the memory of `x`.
    pub fn softcap_assign(&mut self, x: Slot, cap: f32) -> Slot {
        self.map_to(Dest::InPlace, "softcap_assign", x, |x, out| Op::Softcap { x, cap, out })
    }

    /// [`unary`](Self::unary) in the memory of `x`.
    pub fn unary_assign(&mut self, x: Slot, function: Unary) -> Slot {
        self.map_to(Dest::InPlace, "unary_assign", x, |x, out| Op::Unary { x, function, out })
    }

    /// [`rms_norm`](Self::rms_norm) in the memory of `x`.
    pub fn rms_norm_assign(&mut self, x: Slot, weight: Slot, eps: f32) -> Slot {
        self.rms_norm_to(Dest::InPlace, x, weight, eps)
    }

    /// [`rope`](Self::rope) in the memory of `x`.
    pub fn rope_assign(&mut self, x: Slot, table: Slot, layout: RopeLayout) -> Slot {
        self.rope_to(Dest::InPlace, x, table, layout)
    }

    /// [`glu`](Self::glu) in the memory of `gate`.
    pub fn glu_assign(&mut self, gate: Slot, up: Slot, activation: Activation) -> Slot {
        self.glu_to(Dest::InPlace, gate, up, activation)
    }

    pub(super) fn rms_norm_to(&mut self, dest: Dest, x: Slot, weight: Slot, eps: f32) -> Slot {
        let op = if dest == Dest::Fresh { "rms_norm" } else { "rms_norm_assign" };
        let made = self.float(op, x).and_then(|value| {
            self.vector(op, weight, value.head_dim())?;
            let out = self.destination(op, dest, value, &[])?;
            self.push(Op::RmsNorm { x, weight, eps, out });
            Ok(out)
        });
        self.settle(made)
    }

    pub(super) fn rope_to(&mut self, dest: Dest, x: Slot, table: Slot, layout: RopeLayout) -> Slot {
        let op = if dest == Dest::Fresh { "rope" } else { "rope_assign" };
        let made = self.try_rope(op, dest, x, table, layout);
        self.settle(made)
    }

    pub(super) fn glu_to(&mut self, dest: Dest, gate: Slot, up: Slot, activation: Activation) -> Slot {
        let op = if dest == Dest::Fresh { "glu" } else { "glu_assign" };
        let made = self.try_glu(op, dest, gate, up, activation);
        self.settle(made)
    }

    pub(super) fn map_to(
        &mut self,
        dest: Dest,
        op: &'static str,
        x: Slot,
        make: impl FnOnce(Slot, Slot) -> Op,
    ) -> Slot {
        let made = self.float(op, x).and_then(|value| {
            let out = self.destination(op, dest, value, &[])?;
            self.push(make(x, out));
            Ok(out)
        });
        self.settle(made)
    }

    pub(super) fn binary_to(
        &mut self,
        dest: Dest,
        op: &'static str,
        a: Slot,
        b: Slot,
        make: impl FnOnce(Slot, Slot, Slot) -> Op,
    ) -> Slot {
        let made = self.try_binary(op, dest, a, b, make);
        self.settle(made)
    }

    fn try_rope(
        &mut self,
        op: &'static str,
        dest: Dest,
        x: Slot,
        table: Slot,
        layout: RopeLayout,
    ) -> Result<Slot, Reject> {
        let (value, angles) = (self.float(op, x)?, self.float(op, table)?);
        let (rotated, head_dim) = (angles.width(), value.head_dim());
        if rotated > head_dim || rotated % 2 != 0 {
            return Err(BuildError::Rotary { at: self.at(op), rotated, head_dim }.into());
        }
        self.has_extent(op, angles, value.extent.with_width(rotated))?;
        let out = self.destination(op, dest, value, &[angles])?;
        self.push(Op::Rope { x, table, layout, out });
        Ok(out)
    }

    fn try_glu(
        &mut self,
        op: &'static str,
        dest: Dest,
        gate: Slot,
        up: Slot,
        activation: Activation,
    ) -> Result<Slot, Reject> {
        let (gated, other) = (self.float(op, gate)?, self.float(op, up)?);
        self.like(op, other, gated)?;
        let out = self.destination(op, dest, gated, &[other])?;
        self.push(Op::Glu { gate, up, activation, out });
        Ok(out)
    }

    fn try_binary(
        &mut self,
        op: &'static str,
        dest: Dest,
        a: Slot,
        b: Slot,
        make: impl FnOnce(Slot, Slot, Slot) -> Op,
    ) -> Result<Slot, Reject> {
        let (left, right) = (self.float(op, a)?, self.float(op, b)?);
        if right.extent != Extent::Fixed(left.width()) {
            self.has_extent(op, right, left.extent)?;
        }
        self.of_dtype(op, b, left.dtype)?;
        let out = self.destination(op, dest, left, &[right])?;
        self.push(make(a, b, out));
        Ok(out)
    }

    /// The result slot of an operation that gives one value like `x`. In place, `x` becomes stale.
    pub(super) fn destination(
        &mut self,
        op: &'static str,
        dest: Dest,
        x: Value,
        others: &[Value],
    ) -> Result<Slot, Reject> {
        let chain = self.chain();
        match dest {
            Dest::Fresh => Ok(self.temporary(op, chain, x.extent, x.dtype, x.groups)),
            Dest::InPlace => {
                if !self.overwritable(x) {
                    return Err(self.not_overwritable(op, x));
                }
                if let Some(other) = others.iter().find(|other| other.root == x.root) {
                    let slot = self.name_of(other.slot);
                    return Err(BuildError::AliasedOperand { at: self.at(op), slot }.into());
                }
                self.overwrite(x.root, op);
                Ok(self.alias(x, x.groups, chain))
            }
        }
    }
}
