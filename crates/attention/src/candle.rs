//! Eager API over candle tensors.

mod op;
mod portable;

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::plan::Plan;
use crate::{AttnShape, Error, Isa, KvDtype, KvValues};

/// Which code runs a [`CausalAttention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorRoute {
    /// The tiled kernels of [`Route`](crate::Route), over tensors on the CPU.
    Tiled,
    /// Tiles of candle's own operations, on any device.
    Portable,
}

/// Causal attention over candle tensors, without gradient.
///
/// # Routes
/// [`TensorRoute::Tiled`] gives a row the bits that [`Route::run`](crate::Route::run) gives it, at every number of rows, batch entries and
/// threads. Keys and values are read where they lie: a tensor that is a view of a longer one, or transposed with its last axis contiguous,
/// is not copied. [`TensorRoute::Portable`] walks the same blocks of 64 keys in the same order with candle's operations in f32; how those sum is
/// candle's affair, so it agrees with the other route within rounding only.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use plimsoll_attention::{CausalAttention, Isa};
///
/// # fn main() -> candle_core::Result<()> {
/// let device = Device::Cpu;
/// // 2 query heads on 1 KV head, 5 keys, the queries of the last 3.
/// let q = Tensor::ones((1, 2, 3, 8), DType::F32, &device)?;
/// let k = Tensor::ones((1, 1, 5, 8), DType::F32, &device)?;
/// let v = Tensor::arange(0f32, 5., &device)?.reshape((1, 1, 5, 1))?;
/// let attention = CausalAttention::new(1.0 / 8f32.sqrt(), Isa::detect(), 1);
/// let out = attention.forward(&q, &k, &v, 2)?;
/// // Equal scores: each row takes the mean of what it sees.
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [1.0, 1.5, 2.0, 1.0, 1.5, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CausalAttention {
    /// Factor of each dot product.
    pub scale: f32,
    /// Keys each row sees, itself included; `None` sees all before it.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` after the scale.
    pub softcap: Option<f32>,
    /// One logit per query head that takes part in the softmax and has no value.
    pub sinks: Option<Vec<f32>>,
    /// Forces a route; `None` is [`TensorRoute::Tiled`] on the CPU and [`TensorRoute::Portable`] elsewhere.
    pub route: Option<TensorRoute>,
    /// Instruction set of the tiled route.
    pub isa: Isa,
    /// Most tasks at once of the tiled route, on the caller's rayon pool.
    pub threads: usize,
}

/// Axes of one call.
#[derive(Debug, Clone, Copy)]
struct Axes {
    batch: usize,
    shape: AttnShape,
}

impl CausalAttention {
    /// Plain causal attention: no window, cap or sinks, the route by device.
    pub const fn new(scale: f32, isa: Isa, threads: usize) -> Self {
        Self { scale, window: None, softcap: None, sinks: None, route: None, isa, threads }
    }

    /// Attention of `rows` queries at positions `start ..` over all keys at and before each.
    ///
    /// `q`: `[batch, heads, rows, head_dim]`, `k`: `[batch, kv_heads, kv_len, head_dim]`, `v`: `[batch, kv_heads, kv_len, v_head_dim]`; returns
    /// `[batch, heads, rows, v_head_dim]` in the dtype of `q`. Query head `h` reads KV head `h / (heads / kv_heads)`. `k` and `v` are of one
    /// dtype, f32, f16 or bf16; `q` is of any of them. Memory beyond the result: [`CausalAttention::workspace_bytes`].
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not go together, or `start + rows > kv_len`.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, start: usize) -> Result<Tensor> {
        let axes = self.axes(q, k, v, start)?;
        match self.route_on(q.device()) {
            TensorRoute::Tiled => {
                let dtype = q.dtype();
                let q = q.to_dtype(DType::F32)?.contiguous()?;
                let op = op::Tiled { attention: self, axes, start };
                q.apply_op3_no_bwd(&rows_in_order(k)?, &rows_in_order(v)?, &op)?.to_dtype(dtype)
            }
            TensorRoute::Portable => portable::forward(self, &axes, q, k, v, start),
        }
    }

    /// The route that tensors on this device take.
    pub fn route_on(&self, device: &Device) -> TensorRoute {
        self.route.unwrap_or(if device.is_cpu() { TensorRoute::Tiled } else { TensorRoute::Portable })
    }

    /// Most bytes that [`CausalAttention::forward`] holds beyond its arguments and its result, for contiguous `q` and `k` and `v` with contiguous rows.
    ///
    /// Nothing in it grows with `kv_len`. The tiled route has the kernels' scratch and, where `q` is not f32, `q` and the result in f32; the
    /// portable route its tiles, of which it counts the tensors that candle holds at once, not what a device's pool rounds them up to.
    pub fn workspace_bytes(&self, route: TensorRoute, batch: usize, shape: &AttnShape, q_dtype: DType) -> u64 {
        match route {
            TensorRoute::Tiled => {
                let copies = if q_dtype == DType::F32 { 0 } else { shape.head_dim + shape.v_head_dim };
                let copies = (batch * shape.heads * shape.rows * copies * size_of::<f32>()) as u64;
                Plan::of_rows(shape, self.threads.max(1)).bytes() + copies
            }
            TensorRoute::Portable => portable::workspace_bytes(batch, shape),
        }
    }

    fn axes(&self, q: &Tensor, k: &Tensor, v: &Tensor, start: usize) -> Result<Axes> {
        let (batch, heads, rows, head_dim) = q.dims4()?;
        let (k_batch, kv_heads, kv_len, k_dim) = k.dims4()?;
        let (v_batch, v_heads, v_len, v_head_dim) = v.dims4()?;
        for (field, expected, actual) in [
            ("batch entries in k", batch, k_batch),
            ("batch entries in v", batch, v_batch),
            ("heads in v", kv_heads, v_heads),
            ("rows in v", kv_len, v_len),
            ("elements in a row of k", head_dim, k_dim),
        ] {
            if expected != actual {
                bail!("{actual} {field}, {expected} expected");
            }
        }
        let kv_dtype = match (k.dtype(), v.dtype()) {
            (DType::F32, DType::F32) => KvDtype::F32,
            (DType::F16, DType::F16) => KvDtype::F16,
            (DType::BF16, DType::BF16) => KvDtype::Bf16,
            (k, v) => bail!("keys in {k:?} and values in {v:?}; both in f32, f16 or bf16 expected"),
        };
        if !matches!(q.dtype(), DType::F32 | DType::F16 | DType::BF16) {
            bail!("queries in {:?}; f32, f16 or bf16 expected", q.dtype());
        }
        let shape = AttnShape {
            rows,
            kv_len,
            heads,
            kv_heads,
            head_dim,
            v_head_dim,
            kv_dtype,
            kv_values: KvValues::Own,
            window: self.window,
        };
        let checked = || {
            shape.check()?;
            if rows > kv_len || start > kv_len - rows {
                return Err(Error::RowsPastKeys { start, rows, kv_len });
            }
            match &self.sinks {
                Some(sinks) if sinks.len() != heads => {
                    Err(Error::SliceLength { slice: "sinks", expected: heads, actual: sinks.len() })
                }
                _ => Ok(()),
            }
        };
        checked().map_err(candle_core::Error::wrap)?;
        Ok(Axes { batch, shape })
    }
}

/// `x`, or a copy of it if the elements of a row do not lie side by side.
fn rows_in_order(x: &Tensor) -> Result<Tensor> {
    if x.stride().last().is_none_or(|&stride| stride == 1) || x.dim(3)? == 1 { Ok(x.clone()) } else { x.contiguous() }
}
