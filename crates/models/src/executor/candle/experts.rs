//! Steps of mixtures of experts, one product per row and expert.

use super::{Result, Running, sigmoid};
use candle_core::{D, DType, IndexOp, Tensor};
use plimsoll_program::{RouteSpec, Scoring, Slot};

impl Running<'_> {
    pub(super) fn top_k(&mut self, logits: Slot, spec: &RouteSpec, ids: Slot, weights: Slot) -> Result<()> {
        let logits = self.get(logits)?.to_dtype(DType::F32)?;
        let scores = match spec.scoring {
            Scoring::Sigmoid => sigmoid(&logits)?,
            Scoring::Softmax => {
                let powers = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
                powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)?
            }
        };
        let (mut all_ids, mut all_weights) = (Vec::new(), Vec::new());
        for row in scores.to_vec2::<f32>()? {
            let mut order: Vec<(u32, f32)> = (0..).zip(row).collect();
            let key = |score: f32| if score.is_nan() { f32::NEG_INFINITY } else { score };
            // A stable sort: ties stay in ascending order.
            order.sort_by(|a, b| key(b.1).total_cmp(&key(a.1)));
            order.truncate(spec.k);
            let total = order.iter().map(|(_, score)| score).sum::<f32>().max(f32::MIN_POSITIVE);
            let divisor = if spec.normalize { total } else { 1.0 };
            all_ids.extend(order.iter().map(|(id, _)| *id));
            all_weights.extend(order.iter().map(|(_, score)| score / divisor * spec.scale));
        }
        let rows = self.shape(ids).0;
        self.set(ids, Tensor::from_vec(all_ids, (rows, spec.k), self.device)?)?;
        self.set(weights, Tensor::from_vec(all_weights, (rows, spec.k), self.device)?)
    }

    pub(super) fn expert_linear(&mut self, x: Slot, ids: Slot, weight: Slot, out: Slot) -> Result<()> {
        let (x, weight) = (self.get(x)?, self.get(weight)?);
        let chosen = self.get(ids)?.to_vec2::<u32>()?;
        let (in_features, (rows, k)) = (weight.dim(2)?, self.shape(ids));
        let shared = x.dim(1)? == in_features;
        let mut products = Vec::with_capacity(rows * k);
        for (row, ids) in chosen.iter().enumerate() {
            for (slot, &id) in ids.iter().enumerate() {
                let from = if shared { 0 } else { slot * in_features };
                let x = x.narrow(0, row, 1)?.narrow(1, from, in_features)?.contiguous()?;
                products.push(x.matmul(&weight.i(id as usize)?.t()?.contiguous()?)?);
            }
        }
        let shape = self.shape(out);
        let value = match products.is_empty() {
            true => Tensor::zeros(shape, DType::F32, self.device)?,
            false => Tensor::cat(&products, 0)?.reshape(shape)?,
        };
        self.set(out, value)
    }

    pub(super) fn combine_experts(&mut self, x: Slot, weights: Slot, out: Slot) -> Result<()> {
        let ((rows, k), width) = (self.shape(weights), self.shape(out).1);
        let x = self.get(x)?.reshape((rows, k, width))?;
        let weights = self.get(weights)?.reshape((rows, k, 1))?;
        self.set(out, x.broadcast_mul(&weights)?.sum(1)?)
    }
}
