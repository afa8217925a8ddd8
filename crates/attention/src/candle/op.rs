//! The tiled kernels as a candle operation.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, bail};

use super::{Axes, CausalAttention};
use crate::keys::{Keys, KvRows, PlainRows};
use crate::plan::Plan;
use crate::route::run_on;
use crate::tile::{Call, NEVER};
use crate::{AttnParams, KvDtype, KvLayout, KvValues};

/// One call of the tiled kernels. `q` is contiguous f32, `k` and `v` have contiguous rows.
pub(super) struct Tiled<'a> {
    pub(super) attention: &'a CausalAttention,
    pub(super) axes: Axes,
    pub(super) start: usize,
}

/// A line of scratch, for its alignment.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl CustomOp3 for Tiled<'_> {
    fn name(&self) -> &'static str {
        "plimsoll-causal-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Axes { batch, shape } = self.axes;
        let attention = self.attention;
        let Some((first, last)) = q_layout.contiguous_offsets() else { bail!("q is not contiguous") };
        let q = &q.as_slice::<f32>()?[first..last];
        let mut out = vec![0.0; batch * shape.heads * shape.rows * shape.v_head_dim];
        let dims = Shape::from((batch, shape.heads, shape.rows, shape.v_head_dim));
        if out.is_empty() {
            return Ok((CpuStorage::F32(out), dims));
        }

        let plan = Plan::of_rows(&shape, attention.threads.max(1));
        let lines = usize::try_from(plan.bytes()).map_err(candle_core::Error::wrap)?.div_ceil(size_of::<Line>());
        let mut scratch: Vec<Line> = bytemuck::zeroed_vec(lines);
        let CausalAttention { scale, window, softcap, ref sinks, isa, .. } = *attention;
        let params = AttnParams { scale, window, softcap, sinks: sinks.as_deref() };
        let layout = KvLayout {
            kv_heads: 1,
            head_dim: shape.head_dim,
            v_head_dim: shape.v_head_dim,
            dtype: shape.kv_dtype,
            values: KvValues::Own,
        };
        let (q_len, out_len) = (q.len() / batch, out.len() / batch);
        for (b, (q, out)) in q.chunks_exact(q_len).zip(out.chunks_exact_mut(out_len)).enumerate() {
            let k = plain_rows(shape.kv_dtype, k, k_layout, b)?;
            let v = plain_rows(shape.kv_dtype, v, v_layout, b)?;
            let rows = KvRows::new(layout, k, v, shape.kv_heads, shape.kv_len);
            let keys = Keys::Rows(&rows);
            let call =
                Call { shape: &shape, q, keys, start: self.start, params: &params, heads_first: true, stop: &NEVER };
            let scratch = bytemuck::cast_slice_mut(&mut scratch);
            run_on(isa, &plan, &call, out, scratch).map_err(candle_core::Error::wrap)?;
        }
        Ok((CpuStorage::F32(out), dims))
    }
}

/// One batch entry of `[batch, heads, tokens, dim]`.
fn plain_rows<'a>(dtype: KvDtype, storage: &'a CpuStorage, layout: &Layout, batch: usize) -> Result<PlainRows<'a>> {
    let bytes: &[u8] = match dtype {
        KvDtype::F32 => bytemuck::cast_slice(storage.as_slice::<f32>()?),
        KvDtype::F16 => bytemuck::cast_slice(storage.as_slice::<half::f16>()?),
        KvDtype::Bf16 => bytemuck::cast_slice(storage.as_slice::<half::bf16>()?),
    };
    let &[batch_stride, head_stride, token_stride, _] = layout.stride() else { bail!("four axes expected") };
    let first = (layout.start_offset() + batch * batch_stride) * dtype.bytes();
    Ok(PlainRows { bytes: &bytes[first..], head_stride, token_stride })
}
