//! A plain interpreter of programs over two memories: one that keeps everything, and the arena.
//!
//! All element types are held as `f32`, which has their size for the types the tests use.

use plimsoll_program::{
    Activation, ArenaLayout, ChainId, Condition, Dims, Extent, HeadOrder, Op, Program, RouteSpec, Scoring, Slot, Step,
    Unary,
};

/// Marks arena memory that holds no value.
pub(crate) const POISON: u32 = 0x7fc0_dead;

/// Arithmetic of one operation, apart from where its values lie.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Arith {
    Fill {
        value: f32,
        extent: Extent,
    },
    Unary(Unary),
    Add,
    Mul,
    Scale(f32),
    Softcap(f32),
    Glu(Activation),
    Linear {
        in_features: usize,
        bias: bool,
    },
    RmsNorm {
        eps: f32,
        head_dim: usize,
    },
    Select {
        width: usize,
    },
    Sum,
    Copy,
    Slice {
        offset: usize,
        len: usize,
    },
    /// The chosen experts, or their weights.
    TopK {
        spec: RouteSpec,
        experts: usize,
        part: Part,
    },
    /// Of `x`, the chosen experts and all weights `[experts, out_features, in_features]`.
    Experts {
        k: usize,
        out_features: usize,
        in_features: usize,
    },
    Combine {
        k: usize,
    },
    ScaleRows {
        width: usize,
    },
    Columns {
        head_dim: usize,
        offset: usize,
        len: usize,
    },
    /// Of `x`, weight, state and perhaps a bias.
    Conv {
        channels: usize,
        part: Part,
    },
    /// Of q, k, v, decay, beta and state.
    Delta {
        key_heads: usize,
        head_dim: usize,
        value_heads: usize,
        v_head_dim: usize,
        order: HeadOrder,
        part: Part,
    },
}

/// One of two results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Experts, or the state after the last row.
    First,
    /// Weights of experts, or the rows.
    Second,
}

impl Arith {
    pub(crate) fn apply(&self, args: &[&[f32]], dims: &Dims) -> Vec<f32> {
        let map = |f: &dyn Fn(f32) -> f32| args[0].iter().map(|&x| f(x)).collect();
        let zip = |f: &dyn Fn(f32, f32) -> f32| {
            // Broadcasts a single row; `max(1)` for passes without rows.
            let width = args[1].len().max(1);
            args[0].iter().enumerate().map(|(i, &a)| f(a, args[1][i % width])).collect()
        };
        match *self {
            Self::Fill { value, extent } => vec![value; extent.elements(dims)],
            Self::Unary(function) => map(&|x| unary(function, x)),
            Self::Add => zip(&|a, b| a + b),
            Self::Mul => zip(&|a, b| a * b),
            Self::Scale(factor) => map(&|x| x * factor),
            Self::Softcap(cap) => map(&|x| cap * (x / cap).tanh()),
            Self::Glu(activation) => zip(&|gate, up| activate(activation, gate) * up),
            Self::Linear { in_features, bias } => {
                let mut out = Vec::new();
                for row in args[0].chunks(in_features) {
                    for (o, weight) in args[1].chunks(in_features).enumerate() {
                        let dot: f32 = row.iter().zip(weight).map(|(x, w)| x * w).sum();
                        out.push(if bias { dot + args[2][o] } else { dot });
                    }
                }
                out
            }
            Self::RmsNorm { eps, head_dim } => {
                let mut out = Vec::new();
                for head in args[0].chunks(head_dim) {
                    let mean = head.iter().map(|x| x * x).sum::<f32>() / head_dim as f32;
                    let factor = 1.0 / (mean + eps).sqrt();
                    out.extend(head.iter().zip(args[1]).map(|(x, w)| x * factor * w));
                }
                out
            }
            Self::Select { width } => {
                let row = |&row: &f32| &args[0][row as usize * width..][..width];
                args[1].iter().flat_map(row).copied().collect()
            }
            Self::Sum => vec![args[0].iter().sum()],
            Self::Copy => args[0].to_vec(),
            Self::Slice { offset, len } => args[0][offset..offset + len].to_vec(),
            Self::TopK { spec, experts, part } => {
                args[0].chunks(experts).flat_map(|logits| top_k(logits, spec, part)).collect()
            }
            Self::Experts { k, out_features, in_features } => {
                let mut out = Vec::new();
                for (pair, &id) in args[1].iter().enumerate() {
                    let shared = args[0].len() * k == args[1].len() * in_features;
                    let x = &args[0][in_features * if shared { pair / k } else { pair }..][..in_features];
                    let weight = &args[2][id as usize * out_features * in_features..][..out_features * in_features];
                    out.extend(weight.chunks(in_features).map(|w| x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>()));
                }
                out
            }
            Self::Combine { k } => {
                let rows = args[1].len() / k;
                let width = args[0].len() / args[1].len().max(1);
                let term = |row: usize, j: usize, i: usize| args[1][row * k + j] * args[0][(row * k + j) * width + i];
                let sum = |row: usize, i: usize| (1..k).fold(term(row, 0, i), |sum, j| sum + term(row, j, i));
                (0..rows).flat_map(|row| (0..width).map(move |i| (row, i))).map(|(row, i)| sum(row, i)).collect()
            }
            Self::ScaleRows { width } => args[0].iter().enumerate().map(|(i, &x)| x * args[1][i / width]).collect(),
            Self::Columns { head_dim, offset, len } => {
                args[0].chunks(head_dim).flat_map(|head| &head[offset..offset + len]).copied().collect()
            }
            Self::Conv { channels, part } => {
                let kernel = args[1].len() / channels;
                let rows: Vec<f32> = args[2].iter().chain(args[0]).copied().collect();
                if part == Part::First {
                    return rows[rows.len() - (kernel - 1) * channels..].to_vec();
                }
                let tap = |t: usize, c: usize, j: usize| args[1][c * kernel + j] * rows[(t + j) * channels + c];
                let sum = |t: usize, c: usize| {
                    let sum = (1..kernel).fold(tap(t, c, 0), |sum, j| sum + tap(t, c, j));
                    args.get(3).map_or(sum, |bias| sum + bias[c])
                };
                let places = (0..args[0].len()).map(|i| (i / channels, i % channels));
                places.map(|(t, c)| sum(t, c)).collect()
            }
            Self::Delta { key_heads, head_dim, value_heads, v_head_dim, order, part } => {
                let mut state = args[5].to_vec();
                let rows = args[3].len() / value_heads;
                let mut out = vec![0.0; rows * value_heads * v_head_dim];
                for (row, head) in (0..rows).flat_map(|row| (0..value_heads).map(move |head| (row, head))) {
                    let key_head = match order {
                        HeadOrder::Grouped => head / (value_heads / key_heads),
                        HeadOrder::Tiled => head % key_heads,
                    };
                    let at = (row * key_heads + key_head) * head_dim;
                    let (q, k) = (&args[0][at..][..head_dim], &args[1][at..][..head_dim]);
                    let at = row * value_heads + head;
                    let (v, decay, beta) = (&args[2][at * v_head_dim..][..v_head_dim], args[3][at], args[4][at]);
                    let state = &mut state[head * head_dim * v_head_dim..][..head_dim * v_head_dim];
                    for (column, v) in v.iter().enumerate() {
                        let cells = || (0..head_dim).map(|i| i * v_head_dim + column);
                        cells().for_each(|cell| state[cell] *= decay.exp());
                        let known: f32 = cells().zip(k).map(|(cell, k)| state[cell] * k).sum();
                        let delta = (v - known) * beta;
                        cells().zip(k).for_each(|(cell, k)| state[cell] += k * delta);
                        out[at * v_head_dim + column] = cells().zip(q).map(|(cell, q)| state[cell] * q).sum();
                    }
                }
                if part == Part::First { state } else { out }
            }
        }
    }
}

/// Experts and weights by a sort of all scores.
fn top_k(logits: &[f32], spec: RouteSpec, part: Part) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = logits.iter().map(|x| (x - max).exp()).sum();
    let score = |x: &f32| match spec.scoring {
        Scoring::Softmax => (x - max).exp() / total,
        Scoring::Sigmoid => unary(Unary::Sigmoid, *x),
    };
    let mut scores: Vec<(usize, f32)> = logits.iter().map(score).enumerate().collect();
    let key = |score: f32| if score.is_nan() { f32::NEG_INFINITY } else { score };
    scores.sort_by(|a, b| key(b.1).total_cmp(&key(a.1)));
    scores.truncate(spec.k);
    let total: f32 = scores.iter().map(|score| score.1).sum();
    let weight = |score: f32| if spec.normalize { score / total * spec.scale } else { score * spec.scale };
    scores.into_iter().map(|(id, score)| if part == Part::First { id as f32 } else { weight(score) }).collect()
}

fn unary(function: Unary, x: f32) -> f32 {
    match function {
        Unary::Silu => x / (1.0 + (-x).exp()),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Relu => x.max(0.0),
        Unary::Tanh => x.tanh(),
        Unary::Exp => x.exp(),
        Unary::Neg => -x,
        Unary::Square => x * x,
        Unary::Sqrt => x.sqrt(),
        Unary::Softplus => {
            if x > 20.0 {
                x
            } else {
                x.exp().ln_1p()
            }
        }
        Unary::Gelu | Unary::GeluTanh => unreachable!("{function:?} is not used in these tests"),
    }
}

fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => unary(Unary::Silu, x),
        Activation::Relu => unary(Unary::Relu, x),
        Activation::Sigmoid => unary(Unary::Sigmoid, x),
        Activation::Gelu | Activation::GeluTanh => unreachable!("{activation:?} is not used in these tests"),
    }
}

/// Where the values of a pass lie.
pub(crate) trait Memory {
    fn load(&self, slot: Slot) -> Vec<f32>;
    fn save(&mut self, slot: Slot, values: &[f32]);
    /// A step starts.
    fn enter(&mut self, _step: &Step) {}
    /// A step has ended, with the roots its release list names.
    fn leave(&mut self, _step: &Step, _released: &[Slot]) {}
}

/// Runs one chain.
pub(crate) fn run(program: &Program, chain: ChainId, dims: &Dims, memory: &mut dyn Memory) {
    for (index, step) in program.chain(chain).steps().iter().enumerate() {
        memory.enter(step);
        run_step(program, &step.op, dims, memory);
        memory.leave(step, program.release(chain, index));
    }
}

fn run_step(program: &Program, op: &Op, dims: &Dims, memory: &mut dyn Memory) {
    let width = |slot: Slot| program.slot(slot).extent.width();
    let mut apply = |arith: Arith, args: &[Slot], out: Slot| {
        let values: Vec<Vec<f32>> = args.iter().map(|&arg| memory.load(arg)).collect();
        let values: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
        memory.save(out, &arith.apply(&values, dims));
    };
    match op {
        Op::Embed { .. } | Op::RopeTable { .. } | Op::Rope { .. } | Op::Attend { .. } => {
            unreachable!("{} is not used in these tests", op.name())
        }
        Op::Linear { x, parts } => {
            for part in parts {
                let arith = Arith::Linear { in_features: width(*x), bias: part.bias.is_some() };
                let args: Vec<Slot> = [*x, part.weight].into_iter().chain(part.bias).collect();
                apply(arith, &args, part.out);
            }
        }
        Op::RmsNorm { x, weight, eps, out } => {
            let head_dim = program.slot(*x).head_dim();
            apply(Arith::RmsNorm { eps: *eps, head_dim }, &[*x, *weight], *out);
        }
        Op::Glu { gate, up, activation, out } => apply(Arith::Glu(*activation), &[*gate, *up], *out),
        Op::Unary { x, function, out } => apply(Arith::Unary(*function), &[*x], *out),
        Op::Add { a, b, out } => apply(Arith::Add, &[*a, *b], *out),
        Op::Mul { a, b, out } => apply(Arith::Mul, &[*a, *b], *out),
        Op::Scale { x, factor, out } => apply(Arith::Scale(*factor), &[*x], *out),
        Op::Softcap { x, cap, out } => apply(Arith::Softcap(*cap), &[*x], *out),
        Op::SelectRows { x, rows, out } => apply(Arith::Select { width: width(*x) }, &[*x, *rows], *out),
        Op::Copy { x, out } => apply(Arith::Copy, &[*x], *out),
        Op::Fill { value, out } => {
            apply(Arith::Fill { value: *value, extent: program.slot(*out).extent }, &[], *out);
        }
        Op::Sum { x, out } => apply(Arith::Sum, &[*x], *out),
        Op::TopK { logits, spec, ids, weights } => {
            let experts = width(*logits);
            apply(Arith::TopK { spec: *spec, experts, part: Part::First }, &[*logits], *ids);
            apply(Arith::TopK { spec: *spec, experts, part: Part::Second }, &[*logits], *weights);
        }
        Op::ExpertLinear { x, ids, weight, out } => {
            let shape = &program.slot(*weight).shape;
            let arith = Arith::Experts { k: width(*ids), out_features: shape[1], in_features: shape[2] };
            apply(arith, &[*x, *ids, *weight], *out);
        }
        Op::CombineExperts { x, weights, out } => apply(Arith::Combine { k: width(*weights) }, &[*x, *weights], *out),
        Op::ScaleRows { x, factor, out } => apply(Arith::ScaleRows { width: width(*x) }, &[*x, *factor], *out),
        Op::SelectColumns { x, offset, out } => {
            let (head_dim, len) = (program.slot(*x).head_dim(), program.slot(*out).head_dim());
            apply(Arith::Columns { head_dim, offset: *offset, len }, &[*x], *out);
        }
        Op::CausalConv { layer: _, x, weight, bias, state, out } => {
            let channels = width(*x);
            let args: Vec<Slot> = [*x, *weight, *state].into_iter().chain(*bias).collect();
            apply(Arith::Conv { channels, part: Part::Second }, &args, *out);
            apply(Arith::Conv { channels, part: Part::First }, &args, *state);
        }
        Op::GatedDelta { layer: _, q, k, v, decay, beta, order, state, out } => {
            let (key, value) = (program.slot(*q), program.slot(*v));
            let arith = |part| Arith::Delta {
                key_heads: key.groups,
                head_dim: key.head_dim(),
                value_heads: value.groups,
                v_head_dim: value.head_dim(),
                order: *order,
                part,
            };
            let args = [*q, *k, *v, *decay, *beta, *state];
            apply(arith(Part::Second), &args, *out);
            apply(arith(Part::First), &args, *state);
        }
        Op::If { condition, then_chain, else_chain } => {
            let holds = match *condition {
                Condition::RowsAtMost(rows) => dims.rows <= rows,
                Condition::Nonzero(slot) => memory.load(slot)[0] != 0.0,
            };
            run(program, if holds { *then_chain } else { *else_chain }, dims, memory);
        }
        Op::Scan { body, inputs, carries, outputs } => {
            let mut stacked: Vec<Vec<f32>> = vec![Vec::new(); outputs.len()];
            for row in 0..dims.rows {
                for input in inputs {
                    let source = memory.load(input.source);
                    memory.save(input.row, &source[row * width(input.source)..][..width(input.source)]);
                }
                run(program, *body, dims, memory);
                for (output, rows) in outputs.iter().zip(&mut stacked) {
                    rows.extend(memory.load(output.row));
                    // Written row by row, as an executor would: the rest of `stacked` may hold anything.
                    let mut partial = rows.clone();
                    partial.resize(program.elements(output.stacked, dims), 0.0);
                    memory.save(output.stacked, &partial);
                }
                for carry in carries {
                    if program.root(carry.carry) != program.root(carry.next) {
                        let next = memory.load(carry.next);
                        memory.save(carry.carry, &next);
                    }
                }
            }
        }
    }
}

/// Keeps every root, for the whole pass.
#[derive(Debug)]
pub(crate) struct KeepAll<'a> {
    pub(crate) program: &'a Program,
    pub(crate) roots: Vec<Vec<f32>>,
    dims: Dims,
}

impl<'a> KeepAll<'a> {
    pub(crate) fn new(program: &'a Program, dims: Dims) -> Self {
        Self { program, dims, roots: vec![Vec::new(); program.slots().len()] }
    }
}

impl Memory for KeepAll<'_> {
    fn load(&self, slot: Slot) -> Vec<f32> {
        let (root, offset) = self.program.root(slot);
        self.roots[root.index()][offset..][..self.program.elements(slot, &self.dims)].to_vec()
    }

    fn save(&mut self, slot: Slot, values: &[f32]) {
        let (root, offset) = self.program.root(slot);
        let memory = &mut self.roots[root.index()];
        memory.resize(self.program.elements(root, &self.dims), f32::NAN);
        memory[offset..offset + values.len()].copy_from_slice(values);
    }
}

/// Constants and state kept, everything else in one arena; memory without a value is poisoned and never read.
#[derive(Debug)]
pub(crate) struct InArena<'a> {
    pub(crate) kept: KeepAll<'a>,
    pub(crate) layout: &'a ArenaLayout,
    pub(crate) arena: Vec<f32>,
    /// Highest end of anything that was written.
    pub(crate) reached_bytes: u64,
}

impl<'a> InArena<'a> {
    pub(crate) fn new(program: &'a Program, layout: &'a ArenaLayout, dims: Dims) -> Self {
        let arena = vec![f32::from_bits(POISON); layout.size_bytes() as usize / 4];
        Self { kept: KeepAll::new(program, dims), layout, arena, reached_bytes: 0 }
    }

    fn poison(&mut self, start: u64, bytes: u64) {
        let (start, len) = (start as usize / 4, bytes.div_ceil(4) as usize);
        self.arena[start..start + len].fill(f32::from_bits(POISON));
    }
}

impl Memory for InArena<'_> {
    fn load(&self, slot: Slot) -> Vec<f32> {
        let Some(offset) = self.layout.offset(slot) else {
            return self.kept.load(slot);
        };
        let (start, len) = (offset as usize / 4, self.kept.program.elements(slot, &self.kept.dims));
        let values = self.arena[start..start + len].to_vec();
        let poisoned = values.iter().position(|value| value.to_bits() == POISON);
        assert_eq!(poisoned, None, "'{}' is read without a value", self.kept.program.slot(slot).name);
        values
    }

    fn save(&mut self, slot: Slot, values: &[f32]) {
        let Some(offset) = self.layout.offset(slot) else {
            return self.kept.save(slot, values);
        };
        let start = offset as usize / 4;
        self.arena[start..start + values.len()].copy_from_slice(values);
        self.reached_bytes = self.reached_bytes.max(offset + 4 * values.len() as u64);
    }

    fn enter(&mut self, step: &Step) {
        let scratch = self.layout.scratch(step.id);
        self.poison(scratch.start, scratch.end - scratch.start);
        self.reached_bytes = self.reached_bytes.max(scratch.end);
    }

    fn leave(&mut self, step: &Step, released: &[Slot]) {
        let scratch = self.layout.scratch(step.id);
        self.poison(scratch.start, scratch.end - scratch.start);
        for &root in released {
            let (offset, bytes) = (self.layout.offset(root), self.kept.program.bytes(root, &self.kept.dims));
            self.poison(offset.expect("a temporary lies in the arena"), bytes);
        }
    }
}
