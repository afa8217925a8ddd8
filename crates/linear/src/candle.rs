//! Eager API over candle tensors.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Module, Result, Shape, Tensor, bail};

use crate::{Output, PackedWeight, Settings, WeightType, linear, scratch_bytes};

/// A linear layer over candle tensors on the CPU: `y = x * weight^T + bias`, with the bits of [`linear`](crate::linear).
///
/// Cloning shares the weight. Forward passes only; no gradient flows through.
#[derive(Debug, Clone)]
pub struct PackedLinear {
    weight: Arc<PackedWeight>,
    bias: Option<Arc<[f32]>>,
    settings: Settings,
}

/// A line of scratch, for its alignment.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl PackedLinear {
    /// A layer from a packed weight and a bias `[out_features]`.
    ///
    /// # Errors
    /// If the bias has another length.
    pub fn new(weight: Arc<PackedWeight>, bias: Option<&[f32]>, settings: Settings) -> Result<Self> {
        if let Some(bias) = bias.filter(|bias| bias.len() != weight.out_features()) {
            bail!("a bias of {} elements for {} output features", bias.len(), weight.out_features());
        }
        Ok(Self { weight, bias: bias.map(Arc::from), settings })
    }

    /// A layer from tensors: `weight` `[out_features, in_features]` in f32, f16 or bf16, `bias` `[out_features]`.
    ///
    /// # Errors
    /// If a shape or dtype is another one, or a tensor cannot be read.
    pub fn from_tensors(weight: &Tensor, bias: Option<&Tensor>, settings: Settings) -> Result<Self> {
        let (out_features, in_features) = weight.dims2()?;
        let pack = |ty, bytes: &[u8]| {
            PackedWeight::pack(ty, out_features, in_features, bytes, settings.threads).map_err(candle_core::Error::wrap)
        };
        let flat = weight.flatten_all()?;
        let packed = match weight.dtype() {
            DType::F32 => pack(WeightType::F32, bytemuck::cast_slice(&flat.to_vec1::<f32>()?)),
            DType::F16 => pack(WeightType::F16, bytemuck::cast_slice(&flat.to_vec1::<half::f16>()?)),
            DType::BF16 => pack(WeightType::Bf16, bytemuck::cast_slice(&flat.to_vec1::<half::bf16>()?)),
            other => bail!("a weight of dtype {other:?}; f32, f16 or bf16 expected"),
        }?;
        let bias = bias.map(|bias| bias.to_dtype(DType::F32)?.to_vec1::<f32>()).transpose()?;
        Self::new(Arc::new(packed), bias.as_deref(), settings)
    }

    /// The packed weight.
    pub fn weight(&self) -> &Arc<PackedWeight> {
        &self.weight
    }
}

impl Module for PackedLinear {
    /// `x`: `[.., in_features]` in any float dtype; returns `[.., out_features]` in the same dtype, computed in f32.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let dtype = x.dtype();
        x.to_dtype(DType::F32)?.contiguous()?.apply_op1_no_bwd(self)?.to_dtype(dtype)
    }
}

impl CustomOp1 for PackedLinear {
    fn name(&self) -> &'static str {
        "plimsoll-packed-linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (in_features, out_features) = (self.weight.in_features(), self.weight.out_features());
        let mut dims = layout.dims().to_vec();
        match dims.last_mut() {
            Some(last) if *last == in_features => *last = out_features,
            _ => bail!("x of shape {:?} for {in_features} input features", layout.dims()),
        }
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("x is not contiguous");
        };
        let x = &storage.as_slice::<f32>()?[start..end];
        let rows = x.len() / in_features;
        let needed = scratch_bytes(rows, in_features, &[(self.weight.weight_type(), out_features)], self.settings);
        let lines = usize::try_from(needed).map_err(candle_core::Error::wrap)?.div_ceil(size_of::<Line>());
        let mut scratch: Vec<Line> = bytemuck::zeroed_vec(lines);
        let mut out = vec![0.0; rows * out_features];
        let mut parts = [Output { weight: &self.weight, bias: self.bias.as_deref(), out: &mut out }];
        linear(x, rows, &mut parts, bytemuck::cast_slice_mut(&mut scratch), self.settings);
        Ok((CpuStorage::F32(out), Shape::from(dims)))
    }
}
