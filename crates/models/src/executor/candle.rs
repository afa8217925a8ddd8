//! The candle executor: the same steps over candle tensors, on any candle device. Plain on purpose: it is the oracle of the CPU executor in
//! tests, and what runs a program on a device that has no kernels of its own here.
//!
//! Weights are dequantized to f32 once, products are candle's. Tensors are dropped by the program's release lists.

mod experts;
mod recurrent;

use super::check::check_steps;
use super::pass::{ExecError, LogitRows, Segment, dims};
use crate::arch::LayerState;
use crate::model::{Constant, Model};
use candle_core::{D, DType, Device, IndexOp, Tensor};
use plimsoll_linear::PackedWeight;
use plimsoll_program::{
    Activation, AttendSpec, ChainId, Condition, CostModel, DeltaOperands, Dims, FlushMeter, MemoryPlan, Op, PoolModel,
    Program, RopeLayout, Rounding, Slot, SlotKind, Unary,
};
use std::sync::Arc;

type Result<T> = std::result::Result<T, ExecError>;

/// Work queued on the device is waited for once its operands reach this many bytes: what candle's pool holds back is freed then.
const FLUSH_THRESHOLD_BYTES: u64 = 128 << 20;

/// Runs a model's program over tensors of one device.
#[derive(Debug)]
pub struct CandleExecutor {
    model: Arc<Model>,
    device: Device,
    /// Constants as f32 tensors, by slot.
    constants: Vec<Option<Tensor>>,
    live_temporaries: usize,
    flush: FlushMeter,
}

/// Keys and values of one sequence as tensors, `[kv_len, kv_heads, head_dim]` per layer, and its recurrent states.
#[derive(Debug, Clone, Default)]
pub struct CandleSequence {
    layers: Vec<Option<(Tensor, Tensor)>>,
    /// By the state slot of their step.
    states: Vec<Option<Tensor>>,
    len: usize,
}

impl CandleSequence {
    /// Tokens held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of keys, values and recurrent states, as tensors of f32.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let kv = self.layers.iter().flatten().map(|(k, v)| k.elem_count() + v.elem_count());
        4 * kv.chain(self.states.iter().flatten().map(Tensor::elem_count)).sum::<usize>() as u64
    }

    /// Whether no token is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl CandleExecutor {
    /// Dequantizes the model's weights to f32 on `device`.
    ///
    /// # Errors
    /// [`ExecError::Candle`] if the device cannot hold them, [`ExecError::Step`] if the program has a step that cannot run here.
    pub fn new(model: Arc<Model>, device: Device) -> Result<Self> {
        check_steps(model.architecture())?;
        let program = &model.architecture().program;
        let mut constants = vec![None; program.slots().len()];
        for &slot in program.constants() {
            let shape = program.slot(slot).shape.as_slice();
            constants[slot.index()] = Some(match model.constant(slot) {
                Some(Constant::Matrix(weight)) => dequantized(weight, &device)?,
                Some(Constant::Experts(weights)) => {
                    let weights = weights.iter().map(|weight| dequantized(weight, &device));
                    Tensor::stack(&weights.collect::<candle_core::Result<Vec<_>>>()?, 0)?
                }
                Some(Constant::Vector(values)) => Tensor::from_slice(values, shape, &device)?,
                None => continue,
            });
        }
        Ok(Self { model, device, constants, live_temporaries: 0, flush: FlushMeter::new(FLUSH_THRESHOLD_BYTES) })
    }

    /// An estimate of a pass's peak: slots by the program's liveness in buffers as the device's pool rounds them, and what candle's own
    /// operations allocate on the way.
    #[must_use]
    pub fn plan(&self, dims: &Dims) -> MemoryPlan {
        let rounding = if self.device.is_metal() { Rounding::PowerOfTwo } else { Rounding::Multiple(1) };
        let pool = PoolModel { rounding, flush_threshold_bytes: Some(FLUSH_THRESHOLD_BYTES) };
        self.model.architecture().program.pool_plan(dims, &CandleCost, &pool)
    }

    /// The device it runs on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Temporaries that no release list had freed when the last pass ended.
    #[must_use]
    pub fn live_temporaries(&self) -> usize {
        self.live_temporaries
    }

    /// Runs one pass; returns f32 `[logit_rows, vocab_size]`.
    ///
    /// # Errors
    /// [`ExecError`]. Sequences are as before the pass.
    pub fn run(&mut self, segments: &mut [Segment<'_, CandleSequence>], logit_rows: LogitRows) -> Result<Tensor> {
        let model = Arc::clone(&self.model);
        let architecture = model.architecture();
        let dims = dims(segments, logit_rows, architecture.dimensions.vocab_size)?;
        if let Some(segment) = segments.iter().find(|segment| segment.start > segment.sequence.len) {
            let (start, len_tokens) = (segment.start, segment.sequence.len);
            let source = plimsoll_kvcache::Error::Gap { layer: 0, start, len_tokens };
            return Err(ExecError::Kv { layer: 0, source });
        }
        let recurrent = architecture.layers.iter().position(|layer| matches!(layer, LayerState::Recurrent(_)));
        let goes_back = |segment: &&Segment<'_, CandleSequence>| (1..segment.sequence.len).contains(&segment.start);
        if let (Some(layer), Some(segment)) = (recurrent, segments.iter().find(goes_back)) {
            let (tokens, len_tokens) = (segment.start, segment.sequence.len);
            let source = plimsoll_kvcache::Error::NeedsPrefill { layer, tokens, len_tokens, from: 0 };
            return Err(ExecError::Kv { layer, source });
        }
        // Work on copies (tensors are shared, not copied): a fault leaves the sequences as they were.
        let mut kv: Vec<CandleSequence> = segments.iter().map(|segment| (*segment.sequence).clone()).collect();
        let program = &architecture.program;
        let mut pass = Running {
            program,
            constants: &self.constants,
            values: vec![None; program.slots().len()],
            dims,
            device: &self.device,
            spans: segments.iter().map(|segment| (segment.start, segment.tokens.len())).collect(),
            kv: &mut kv,
            flush: &mut self.flush,
        };
        let ports = architecture.ports;
        let ids: Vec<u32> = segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect();
        let positions = segments.iter().flat_map(|s| s.start..s.start + s.tokens.len()).map(as_u32).collect();
        let rows = logit_rows.indices(segments.iter().map(|s| s.tokens.len())).map(as_u32).collect();
        for (slot, values) in [(ports.ids, ids), (ports.positions, positions), (ports.logit_rows, rows)] {
            pass.values[slot.index()] = Some(Tensor::new(values, &self.device)?.unsqueeze(1)?);
        }
        pass.chain(ChainId::MAIN)?;
        let logits = pass.get(ports.logits)?;
        let is_live = |(value, info): (&Option<Tensor>, &plimsoll_program::SlotInfo)| {
            value.is_some() && info.kind == SlotKind::Temporary
        };
        self.live_temporaries = pass.values.iter().zip(program.slots()).filter(|pair| is_live(*pair)).count();
        for (segment, mut kv) in segments.iter_mut().zip(kv) {
            kv.len = segment.start + segment.tokens.len();
            *segment.sequence = kv;
        }
        Ok(logits)
    }
}

/// All of a weight as f32 `[out_features, in_features]`.
fn dequantized(weight: &PackedWeight, device: &Device) -> candle_core::Result<Tensor> {
    let (rows, width) = (weight.out_features(), weight.in_features());
    let mut values = vec![0.0f32; rows * width];
    for (row, out) in values.chunks_exact_mut(width).enumerate() {
        weight.dequantize_row(row, out);
    }
    Tensor::from_vec(values, (rows, width), device)
}

fn as_u32(index: usize) -> u32 {
    u32::try_from(index).expect("checked when the pass was sized")
}

/// One pass under way. Every value is `[rows of its extent, width]`.
struct Running<'p> {
    program: &'p Program,
    constants: &'p [Option<Tensor>],
    values: Vec<Option<Tensor>>,
    dims: Dims,
    device: &'p Device,
    /// Start and rows of each segment.
    spans: Vec<(usize, usize)>,
    kv: &'p mut [CandleSequence],
    flush: &'p mut FlushMeter,
}

impl Running<'_> {
    fn chain(&mut self, chain: ChainId) -> Result<()> {
        let program = self.program;
        for (index, step) in program.chain(chain).steps().iter().enumerate() {
            self.step(&step.op)?;
            // Accounted before the release: a temporary that ends here was queued all the same.
            let flush = self.flush.account(program, step.id, &self.dims);
            for root in program.release(chain, index) {
                self.values[root.index()] = None;
            }
            if flush {
                self.device.synchronize()?;
            }
        }
        Ok(())
    }

    fn shape(&self, slot: Slot) -> (usize, usize) {
        let extent = self.program.slot(slot).extent;
        (extent.rows(&self.dims), extent.width())
    }

    fn get(&self, slot: Slot) -> Result<Tensor> {
        let (root, offset) = self.program.root(slot);
        let held = if self.program.slot(root).kind == SlotKind::Constant { self.constants } else { &self.values };
        let value = held[root.index()].clone().expect("the release lists keep what is still to be read");
        if self.program.slot(root).kind == SlotKind::Constant {
            return Ok(value);
        }
        let (rows, width) = self.shape(slot);
        if value.elem_count() == rows * width {
            return Ok(value.reshape((rows, width))?);
        }
        Ok(value.flatten_all()?.narrow(0, offset, rows * width)?.reshape((rows, width))?)
    }

    fn set(&mut self, slot: Slot, value: Tensor) -> Result<()> {
        let (root, offset) = self.program.root(slot);
        let (root_shape, elements) = (self.shape(root), value.elem_count());
        let value = if elements == root_shape.0 * root_shape.1 {
            value.reshape(root_shape)?
        } else {
            // A view that is a part of its root: the rest keeps its values.
            let old = match &self.values[root.index()] {
                Some(old) => old.flatten_all()?,
                None => Tensor::zeros(root_shape.0 * root_shape.1, value.dtype(), self.device)?,
            };
            let (tail, rest) = (offset + elements, old.elem_count() - offset - elements);
            let parts = [old.narrow(0, 0, offset)?, value.flatten_all()?, old.narrow(0, tail, rest)?];
            Tensor::cat(&parts, 0)?.reshape(root_shape)?
        };
        self.values[root.index()] = Some(value);
        Ok(())
    }

    /// `[rows, width]` as `[rows, groups, width / groups]`.
    fn heads(&self, slot: Slot) -> Result<Tensor> {
        let info = self.program.slot(slot);
        let (rows, _) = self.shape(slot);
        Ok(self.get(slot)?.reshape((rows, info.groups, info.head_dim()))?)
    }

    fn step(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Embed { ids, table, out } => {
                let ids = self.get(*ids)?.flatten_all()?;
                self.set(*out, self.get(*table)?.index_select(&ids, 0)?)
            }
            Op::Linear { x, parts } => {
                let x = self.get(*x)?;
                for part in parts {
                    let (rows, width) = self.shape(part.out);
                    let product = if rows == 0 {
                        Tensor::zeros((0, width), DType::F32, self.device)?
                    } else {
                        x.matmul(&self.get(part.weight)?.t()?)?
                    };
                    let product = match part.bias {
                        Some(bias) => product.broadcast_add(&self.get(bias)?)?,
                        None => product,
                    };
                    self.set(part.out, product)?;
                }
                Ok(())
            }
            Op::RmsNorm { x, weight, eps, out } => {
                let heads = self.heads(*x)?;
                let mean = heads.sqr()?.mean_keepdim(D::Minus1)?;
                let normed = heads.broadcast_div(&(mean + f64::from(*eps))?.sqrt()?)?;
                self.set(*out, normed.broadcast_mul(&self.get(*weight)?)?)
            }
            Op::RopeTable { positions, inv_freq, scale, out } => {
                let positions = self.get(*positions)?.to_dtype(DType::F32)?;
                let angles = positions.broadcast_mul(&self.get(*inv_freq)?.unsqueeze(0)?)?;
                let table = Tensor::cat(&[angles.cos()?, angles.sin()?], 1)?;
                self.set(*out, (table * f64::from(*scale))?)
            }
            Op::Rope { x, table, layout, out } => {
                let rotated = rotate(&self.heads(*x)?, &self.get(*table)?, *layout)?;
                self.set(*out, rotated)
            }
            Op::Attend { layer, q, k, v, state: _, spec, out } => self.attend(*layer, [*q, *k, *v], spec, *out),
            Op::Glu { gate, up, activation, out } => {
                let gate = activate(&self.get(*gate)?, *activation)?;
                self.set(*out, (gate * self.get(*up)?)?)
            }
            Op::Unary { x, function, out } => self.set(*out, unary(&self.get(*x)?, *function)?),
            Op::Add { a, b, out } => self.set(*out, self.get(*a)?.broadcast_add(&self.get(*b)?)?),
            Op::Mul { a, b, out } => self.set(*out, self.get(*a)?.broadcast_mul(&self.get(*b)?)?),
            Op::Scale { x, factor, out } => self.set(*out, (self.get(*x)? * f64::from(*factor))?),
            Op::Softcap { x, cap, out } => {
                let cap = f64::from(*cap);
                self.set(*out, ((self.get(*x)? / cap)?.tanh()? * cap)?)
            }
            Op::SelectRows { x, rows, out } => {
                let rows = self.get(*rows)?.flatten_all()?;
                self.set(*out, self.get(*x)?.index_select(&rows, 0)?)
            }
            Op::Copy { x, out } => self.set(*out, self.get(*x)?),
            Op::Fill { value, out } => {
                let shape = self.shape(*out);
                self.set(*out, Tensor::full(*value, shape, self.device)?)
            }
            Op::Sum { x, out } => self.set(*out, self.get(*x)?.sum_all()?.reshape((1, 1))?),
            Op::TopK { logits, spec, ids, weights } => self.top_k(*logits, spec, *ids, *weights),
            Op::ExpertLinear { x, ids, weight, out } => self.expert_linear(*x, *ids, *weight, *out),
            Op::CombineExperts { x, weights, out } => self.combine_experts(*x, *weights, *out),
            Op::ScaleRows { x, factor, out } => self.set(*out, self.get(*x)?.broadcast_mul(&self.get(*factor)?)?),
            Op::SelectColumns { x, offset, out } => {
                let len = self.program.slot(*out).head_dim();
                self.set(*out, self.heads(*x)?.narrow(2, *offset, len)?.contiguous()?)
            }
            Op::CausalConv { layer: _, x, weight, bias, state, out } => {
                self.causal_conv(*x, *weight, *bias, *state, *out)
            }
            Op::GatedDelta { layer: _, q, k, v, decay, beta, order, state, out } => {
                let operands = DeltaOperands { q: *q, k: *k, v: *v, decay: *decay, beta: *beta, order: *order };
                self.gated_delta(operands, *state, *out)
            }
            Op::If { condition, then_chain, else_chain } => {
                let holds = match condition {
                    Condition::RowsAtMost(rows) => self.dims.rows <= *rows,
                    Condition::Nonzero(slot) => {
                        self.get(*slot)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()? != [0.0]
                    }
                };
                self.chain(if holds { *then_chain } else { *else_chain })
            }
            Op::Scan { body, inputs, carries, outputs } => {
                let mut stacks: Vec<Vec<Tensor>> = vec![Vec::with_capacity(self.dims.rows); outputs.len()];
                for row in 0..self.dims.rows {
                    for input in inputs {
                        self.set(input.row, self.get(input.source)?.i(row)?.unsqueeze(0)?)?;
                    }
                    self.chain(*body)?;
                    for (output, stack) in outputs.iter().zip(&mut stacks) {
                        stack.push(self.get(output.row)?);
                    }
                    for carry in carries {
                        self.set(carry.carry, self.get(carry.next)?)?;
                    }
                }
                for (output, stack) in outputs.iter().zip(stacks) {
                    self.set(output.stacked, Tensor::cat(&stack, 0)?)?;
                }
                Ok(())
            }
        }
    }

    fn attend(&mut self, layer: usize, [q, k, v]: [Slot; 3], spec: &AttendSpec, out: Slot) -> Result<()> {
        let (q, k, v) = (self.heads(q)?, self.heads(k)?, self.heads(v)?);
        let sinks = spec.sinks.map(|sinks| self.get(sinks)).transpose()?;
        let mut results = Vec::with_capacity(self.spans.len());
        let mut first = 0;
        for (index, &(start, rows)) in self.spans.iter().enumerate() {
            let (q, k, v) = (q.narrow(0, first, rows)?, k.narrow(0, first, rows)?, v.narrow(0, first, rows)?);
            first += rows;
            let layers = &mut self.kv[index].layers;
            if layers.len() <= layer {
                layers.resize(layer + 1, None);
            }
            let (k, v) = match layers[layer].take().filter(|_| start > 0) {
                Some((old_k, old_v)) => {
                    let (old_k, old_v) = (old_k.narrow(0, 0, start)?, old_v.narrow(0, 0, start)?);
                    (Tensor::cat(&[old_k, k], 0)?, Tensor::cat(&[old_v, v], 0)?)
                }
                None => (k, v),
            };
            results.push(attend(&q, &k, &v, start, spec, sinks.as_ref())?);
            layers[layer] = Some((k, v));
        }
        self.set(out, Tensor::cat(&results, 0)?)
    }
}

/// What candle's own operations allocate while a step runs.
#[derive(Debug, Clone, Copy)]
struct CandleCost;

impl CostModel for CandleCost {
    fn scratch_bytes(&self, program: &Program, op: &Op, dims: &Dims) -> u64 {
        let bytes = |slot: Slot| program.bytes(slot, dims);
        match op {
            Op::Attend { q, k, v, .. } => {
                let (q_info, rows, kv_len) = (program.slot(*q), dims.rows as u64, dims.kv_len as u64);
                let heads = q_info.groups as u64;
                let widths = (q_info.head_dim() + program.slot(*v).head_dim()) as u64;
                // Scores, masked scores, exponentials and weights; k and v repeated, twice while they are made contiguous. Saturating: a price
                // without sense is one that nobody can pay.
                let scores = rows.saturating_mul(kv_len).saturating_mul(4 * heads + 1);
                let repeated = kv_len.saturating_mul(2 * heads * widths);
                let elements = scores.saturating_add(repeated);
                elements.saturating_mul(4).saturating_add(2 * bytes(*q) + bytes(*k) + bytes(*v))
            }
            Op::RmsNorm { x, .. } | Op::Rope { x, .. } => 3 * bytes(*x),
            Op::Glu { gate: x, .. } | Op::Unary { x, .. } | Op::Softcap { x, .. } => 2 * bytes(*x),
            Op::RopeTable { out, .. } => 2 * bytes(*out),
            Op::TopK { logits, .. } => 3 * bytes(*logits),
            // The weight of one expert at a time, made contiguous, and the products before they are joined.
            Op::ExpertLinear { weight, out, .. } => {
                bytes(*weight) / program.slot(*weight).shape[0].max(1) as u64 + bytes(*out)
            }
            Op::CombineExperts { x, .. } => bytes(*x),
            Op::CausalConv { x, state, .. } => 3 * bytes(*x) + 2 * bytes(*state),
            Op::GatedDelta { state, out, .. } => 4 * bytes(*state) + bytes(*out),
            Op::Linear { .. }
            | Op::Embed { .. }
            | Op::Add { .. }
            | Op::Mul { .. }
            | Op::Scale { .. }
            | Op::SelectRows { .. }
            | Op::ScaleRows { .. }
            | Op::SelectColumns { .. }
            | Op::Copy { .. }
            | Op::Fill { .. }
            | Op::Sum { .. }
            | Op::If { .. }
            | Op::Scan { .. } => 0,
        }
    }
}

/// Softmax attention over whole score matrices. `q`: `[rows, heads, head_dim]`, `k`: `[kv_len, kv_heads, head_dim]`, `v`:
/// `[kv_len, kv_heads, v_head_dim]`; row `i` stands at position `start + i`. Returns `[rows, heads, v_head_dim]`.
fn attend(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    start: usize,
    spec: &AttendSpec,
    sinks: Option<&Tensor>,
) -> Result<Tensor> {
    let (rows, heads, _) = q.dims3()?;
    let (kv_len, kv_heads, _) = k.dims3()?;
    let group_size = heads / kv_heads;
    let repeat = |x: &Tensor| -> candle_core::Result<Tensor> {
        let (len, kv_heads, width) = x.dims3()?;
        x.unsqueeze(2)?
            .expand((len, kv_heads, group_size, width))?
            .reshape((len, heads, width))?
            .transpose(0, 1)?
            .contiguous()
    };
    let q = q.transpose(0, 1)?.contiguous()?; // [heads, rows, head_dim]
    let scores = (q.matmul(&repeat(k)?.t()?.contiguous()?)? * f64::from(spec.scale))?; // [heads, rows, kv_len]
    let scores = match spec.softcap.map(f64::from) {
        Some(cap) => ((scores / cap)?.tanh()? * cap)?,
        None => scores,
    };
    let visible = |row: usize, key: usize| {
        let position = start + row;
        key <= position && spec.window.is_none_or(|window| key + window > position)
    };
    let mask: Vec<f32> = (0..rows)
        .flat_map(|row| (0..kv_len).map(move |key| if visible(row, key) { 0.0 } else { f32::NEG_INFINITY }))
        .collect();
    let mask = Tensor::from_vec(mask, (rows, kv_len), q.device())?;
    let mut scores = scores.broadcast_add(&mask)?;
    if let Some(sinks) = sinks {
        let sinks = sinks.reshape((heads, 1, 1))?.expand((heads, rows, 1))?;
        scores = Tensor::cat(&[scores, sinks], 2)?;
    }
    let max = scores.max_keepdim(D::Minus1)?;
    let weights = scores.broadcast_sub(&max)?.exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?.narrow(2, 0, kv_len)?.contiguous()?;
    Ok(weights.matmul(&repeat(v)?)?.transpose(0, 1)?.contiguous()?)
}

/// `x`: `[rows, heads, head_dim]`; `table`: `[rows, rotary_dim]`, cosines then sines.
fn rotate(x: &Tensor, table: &Tensor, layout: RopeLayout) -> Result<Tensor> {
    let (rows, heads, head_dim) = x.dims3()?;
    let rotary_dim = table.dim(1)?;
    let half = rotary_dim / 2;
    let cos = table.narrow(1, 0, half)?.unsqueeze(1)?;
    let sin = table.narrow(1, half, half)?.unsqueeze(1)?;
    let (rotated, rest) = (x.narrow(2, 0, rotary_dim)?, x.narrow(2, rotary_dim, head_dim - rotary_dim)?);
    let (a, b) = match layout {
        RopeLayout::Halves => (rotated.narrow(2, 0, half)?, rotated.narrow(2, half, half)?),
        RopeLayout::Pairs => {
            let pairs = rotated.reshape((rows, heads, half, 2))?;
            (pairs.i((.., .., .., 0))?, pairs.i((.., .., .., 1))?)
        }
    };
    let new_a = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let new_b = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
    let rotated = match layout {
        RopeLayout::Halves => Tensor::cat(&[new_a, new_b], 2)?,
        RopeLayout::Pairs => Tensor::stack(&[new_a, new_b], 3)?.reshape((rows, heads, rotary_dim))?,
    };
    Ok(Tensor::cat(&[rotated, rest], 2)?)
}

fn sigmoid(x: &Tensor) -> candle_core::Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}

fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    Ok(match activation {
        Activation::Silu => x.silu()?,
        Activation::Gelu => x.gelu_erf()?,
        Activation::GeluTanh => x.gelu()?,
        Activation::Relu => x.relu()?,
        Activation::Sigmoid => sigmoid(x)?,
    })
}

fn unary(x: &Tensor, function: Unary) -> Result<Tensor> {
    Ok(match function {
        Unary::Silu => x.silu()?,
        Unary::Sigmoid => sigmoid(x)?,
        Unary::Gelu => x.gelu_erf()?,
        Unary::GeluTanh => x.gelu()?,
        Unary::Relu => x.relu()?,
        Unary::Tanh => x.tanh()?,
        Unary::Exp => x.exp()?,
        Unary::Neg => x.neg()?,
        Unary::Square => x.sqr()?,
        Unary::Sqrt => x.sqrt()?,
        // max(x, 0) + ln(1 + e^-|x|), which cannot overflow.
        Unary::Softplus => (x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?)?,
    })
}
