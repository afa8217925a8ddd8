//! Operations of mixtures of experts.

use super::ProgramBuilder;
use super::check::Reject;
use super::ops::Dest;
use crate::{BuildError, DType, Op, RouteSpec, Slot};

impl ProgramBuilder {
    /// The experts of each row and their weights, by `logits` (`[.., experts]`); results U32 and F32, both `[.., k]`.
    pub fn top_k(&mut self, logits: Slot, spec: RouteSpec) -> (Slot, Slot) {
        match self.try_top_k(logits, spec) {
            Ok(made) => made,
            Err(reject) => {
                let broken = self.broken(reject);
                (broken, broken)
            }
        }
    }

    /// The products of each row with its experts: `weight` `[experts, out_features, in_features]`, `ids` from
    /// [`top_k`](Self::top_k), `x` `[.., in_features]` or a part for each of the `k` slots, `[.., k * in_features]`; result F32
    /// `[.., k * out_features]` in `k` groups.
    pub fn expert_linear(&mut self, x: Slot, ids: Slot, weight: Slot) -> Slot {
        let made = self.try_expert_linear(x, ids, weight);
        self.settle(made)
    }

    /// The weighted sum of the slots of `x` (`[.., k * width]`), `weights` `[.., k]`; result F32 `[.., width]`.
    pub fn combine_experts(&mut self, x: Slot, weights: Slot) -> Slot {
        let made = self.try_combine_experts(x, weights);
        self.settle(made)
    }

    /// Each row of `x` times its own `factor` (`[.., 1]`).
    pub fn scale_rows(&mut self, x: Slot, factor: Slot) -> Slot {
        let made = self.try_scale_rows(Dest::Fresh, x, factor);
        self.settle(made)
    }

    /// [`scale_rows`](Self::scale_rows) in the memory of `x`.
    pub fn scale_rows_assign(&mut self, x: Slot, factor: Slot) -> Slot {
        let made = self.try_scale_rows(Dest::InPlace, x, factor);
        self.settle(made)
    }

    /// A copy of elements `offset..offset + len` of each group of a row; result `[.., groups * len]` in as many groups.
    pub fn select_columns(&mut self, x: Slot, offset: usize, len: usize) -> Slot {
        let made = self.try_select_columns(x, offset, len);
        self.settle(made)
    }

    fn try_top_k(&mut self, logits: Slot, spec: RouteSpec) -> Result<(Slot, Slot), Reject> {
        let op = "top_k";
        let value = self.of_dtype(op, logits, DType::F32)?;
        let (k, experts) = (spec.k, value.width());
        if k == 0 || k > experts {
            return Err(BuildError::Experts { at: self.at(op), k, experts }.into());
        }
        let (chain, extent) = (self.chain(), value.extent.with_width(k));
        let ids = self.temporary(op, chain, extent, DType::U32, 1);
        let weights = self.temporary(op, chain, extent, DType::F32, 1);
        self.push(Op::TopK { logits, spec, ids, weights });
        Ok((ids, weights))
    }

    fn try_expert_linear(&mut self, x: Slot, ids: Slot, weight: Slot) -> Result<Slot, Reject> {
        let op = "expert_linear";
        let (value, chosen) = (self.of_dtype(op, x, DType::F32)?, self.of_dtype(op, ids, DType::U32)?);
        let k = chosen.width();
        let info = self.weight(op, weight, 3, "[experts, out_features, in_features]")?;
        let (experts, out_features, in_features) = (info.shape[0], info.shape[1], info.shape[2]);
        if k == 0 || k > experts {
            return Err(BuildError::Experts { at: self.at(op), k, experts }.into());
        }
        if value.width() != in_features && Some(value.width()) != in_features.checked_mul(k) {
            let expected =
                format!("[experts, out_features, {}], or a part of that for each of {k} slots", value.width());
            return Err(self.wrong_shape(op, info, expected));
        }
        self.has_extent(op, chosen, value.extent.with_width(k))?;
        let extent = value.extent.with_width(k.saturating_mul(out_features));
        let out = self.temporary(op, self.chain(), extent, DType::F32, k);
        self.push(Op::ExpertLinear { x, ids, weight, out });
        Ok(out)
    }

    fn try_combine_experts(&mut self, x: Slot, weights: Slot) -> Result<Slot, Reject> {
        let op = "combine_experts";
        let (value, factors) = (self.of_dtype(op, x, DType::F32)?, self.of_dtype(op, weights, DType::F32)?);
        let (k, width) = (factors.width(), value.width());
        self.has_extent(op, factors, value.extent.with_width(k))?;
        if k == 0 || !width.is_multiple_of(k) {
            let slot = self.name_of(x);
            return Err(BuildError::Groups { at: self.at(op), slot, width, groups: k }.into());
        }
        let out = self.temporary(op, self.chain(), value.extent.with_width(width / k), DType::F32, 1);
        self.push(Op::CombineExperts { x, weights, out });
        Ok(out)
    }

    fn try_scale_rows(&mut self, dest: Dest, x: Slot, factor: Slot) -> Result<Slot, Reject> {
        let op = if dest == Dest::Fresh { "scale_rows" } else { "scale_rows_assign" };
        let (value, factors) = (self.of_dtype(op, x, DType::F32)?, self.of_dtype(op, factor, DType::F32)?);
        self.has_extent(op, factors, value.extent.with_width(1))?;
        let out = self.destination(op, dest, value, &[factors])?;
        self.push(Op::ScaleRows { x, factor, out });
        Ok(out)
    }

    fn try_select_columns(&mut self, x: Slot, offset: usize, len: usize) -> Result<Slot, Reject> {
        let op = "select_columns";
        let value = self.operand(op, x)?;
        let head_dim = value.head_dim();
        if offset.checked_add(len).is_none_or(|end| end > head_dim) {
            let slot = self.name_of(x);
            return Err(BuildError::Columns { at: self.at(op), slot, offset, len, head_dim }.into());
        }
        let extent = value.extent.with_width(value.groups * len);
        let out = self.temporary(op, self.chain(), extent, value.dtype, value.groups);
        self.push(Op::SelectColumns { x, offset, out });
        Ok(out)
    }
}
