//! A small model of every kind of step that experts and recurrent layers have: bits, state and memory on the CPU, values against candle.

use super::{
    candle::{CandleExecutor, CandleSequence},
    cost::CpuSettings,
    cpu::CpuExecutor,
    observer::{StepEvent, StepObserver},
    pass::{ExecError, LogitRows, Segment},
};
use crate::{
    arch::{Architecture, Dimensions, KvLayerShape, LayerState, Ports},
    layers::{
        delta_net::{DeltaNetInputs, DeltaNetShape, DeltaNetWeights, delta_net},
        mlp::{LinearWeights, MlpWeights},
        moe::{MoeWeights, SharedExpert, moe},
    },
    model::{Constant, Model},
    testing::Random,
};
use candle_core::Device;
use plimsoll_attention::KvDtype;
use plimsoll_kvcache::{Error as KvError, RecurrentSpec, Sequence};
use plimsoll_linear::{PackedWeight, WeightType};
use plimsoll_memguard::{Budget, Kind, Ledger};
use plimsoll_prefill::CancelToken;
use plimsoll_program::{
    Activation, AttendSpec, DType, Dims, Extent, HeadOrder, ProgramBuilder, RouteSpec, Scoring, Slot, SlotKind,
};
use std::sync::Arc;

const VOCAB: usize = 23;
const HIDDEN: usize = 16;
const NET: DeltaNetShape = DeltaNetShape {
    key_heads: 2,
    key_head_dim: 4,
    value_heads: 4,
    value_head_dim: 6,
    kernel: 4,
    order: HeadOrder::Grouped,
};
const ATTENTION: KvLayerShape = KvLayerShape { kv_heads: 1, head_dim: 8, v_head_dim: 8, window: None };

/// Declares weights and remembers what is computed.
struct Weights {
    b: ProgramBuilder,
    computed: Vec<(Slot, Vec<f32>)>,
    layer: usize,
}

impl Weights {
    fn constant(&mut self, name: &str, shape: &[usize]) -> Slot {
        self.b.constant(format!("blk.{}.{name}", self.layer), shape, DType::F32)
    }

    fn linear(&mut self, name: &str, out_features: usize, in_features: usize) -> LinearWeights {
        LinearWeights { weight: self.constant(name, &[out_features, in_features]), bias: None }
    }

    fn delta_layer(&mut self, x: Slot) -> Slot {
        let project = [
            (self.constant("qkv", &[NET.channels(), HIDDEN]), None),
            (self.constant("z", &[NET.value_width(), HIDDEN]), None),
            (self.constant("a", &[NET.value_heads, HIDDEN]), None),
            (self.constant("b", &[NET.value_heads, HIDDEN]), None),
        ];
        let [q_unit, k_unit] = ["q_unit", "k_unit"].map(|name| self.constant(name, &[NET.key_head_dim]));
        let [q_values, k_values] = NET.unit_weights();
        self.computed.extend([(q_unit, q_values), (k_unit, k_values)]);
        let weights = DeltaNetWeights {
            conv: self.constant("conv", &[NET.channels() * NET.kernel]),
            dt_bias: self.constant("dt_bias", &[NET.value_heads]),
            decay_rate: self.constant("decay_rate", &[NET.value_heads]),
            q_unit,
            k_unit,
            norm: self.constant("norm", &[NET.value_head_dim]),
            out: self.constant("out", &[HIDDEN, NET.value_width()]),
        };
        self.computed.push((weights.decay_rate, vec![-0.1, -1.0, -3.0, -0.5]));
        let made = self.b.linear_many(x, &project);
        let inputs = DeltaNetInputs { qkv: made[0], z: made[1], a: made[2], b: made[3] };
        // The last layer has its heads as llama.cpp's files may.
        let shape = DeltaNetShape { order: if self.layer == 2 { HeadOrder::Tiled } else { NET.order }, ..NET };
        delta_net(&mut self.b, inputs, &weights, &shape, 1e-6, self.layer)
    }

    /// Attention whose projection of q has a gate beside each head.
    fn attention_layer(&mut self, x: Slot) -> Slot {
        let (heads, head_dim) = (2, ATTENTION.head_dim);
        let project = [
            (self.constant("q", &[heads * 2 * head_dim, HIDDEN]), None),
            (self.constant("k", &[head_dim, HIDDEN]), None),
            (self.constant("v", &[head_dim, HIDDEN]), None),
        ];
        let out = self.constant("o", &[HIDDEN, heads * head_dim]);
        let b = &mut self.b;
        let made = b.linear_many(x, &project);
        let both = b.split_heads(made[0], heads);
        let (q, gate) = (b.select_columns(both, 0, head_dim), b.select_columns(both, head_dim, head_dim));
        let kv = b.state(format!("blk.{}.kv", self.layer), Extent::Fixed(0), DType::F32);
        let y = b.attend(self.layer, q, made[1], made[2], kv, AttendSpec::causal(0.35));
        let (y, gate) = (b.merge_heads(y), b.merge_heads(gate));
        let y = b.glu_assign(gate, y, Activation::Sigmoid);
        b.linear(y, out)
    }

    fn experts(&mut self, x: Slot) -> Slot {
        let (experts, width) = (5, 8);
        let weights = MoeWeights {
            router: self.constant("router", &[experts, HIDDEN]),
            gate: self.constant("gate_exps", &[experts, width, HIDDEN]),
            up: self.constant("up_exps", &[experts, width, HIDDEN]),
            down: self.constant("down_exps", &[experts, HIDDEN, width]),
            shared: Some(SharedExpert {
                mlp: MlpWeights {
                    gate: self.linear("gate", 6, HIDDEN),
                    up: self.linear("up", 6, HIDDEN),
                    down: self.linear("down", HIDDEN, 6),
                },
                gate: Some(self.constant("shared_gate", &[1, HIDDEN])),
            }),
        };
        let spec = RouteSpec { k: 2, scoring: Scoring::Softmax, normalize: true, scale: 1.0 };
        moe(&mut self.b, x, &weights, spec, Activation::Silu)
    }
}

/// Layers 0 and 2 recur, layer 1 attends; each is followed by experts.
fn architecture(layers: Vec<LayerState>) -> Architecture {
    let mut w = Weights { b: ProgramBuilder::new(), computed: Vec::new(), layer: 0 };
    let ids = w.b.input("ids", Extent::PerRow(1), DType::U32);
    let positions = w.b.input("positions", Extent::PerRow(1), DType::U32);
    let logit_rows = w.b.input("logit_rows", Extent::PerLogitRow(1), DType::U32);
    let table = w.b.constant("table", &[VOCAB, HIDDEN], DType::F32);
    let mut x = w.b.embed(ids, table);
    for layer in 0..3 {
        w.layer = layer;
        w.b.set_layer(Some(layer));
        let norm = w.constant("attn_norm", &[HIDDEN]);
        let h = w.b.rms_norm(x, norm, 1e-6);
        let h = if layer == 1 { w.attention_layer(h) } else { w.delta_layer(h) };
        x = w.b.add_assign(x, h);
        let norm = w.constant("ffn_norm", &[HIDDEN]);
        let h = w.b.rms_norm(x, norm, 1e-6);
        let h = w.experts(h);
        x = w.b.add_assign(x, h);
    }
    let head = w.b.constant("head", &[VOCAB, HIDDEN], DType::F32);
    let x = w.b.select_rows(x, logit_rows);
    let logits = w.b.linear(x, head);
    w.b.mark_output(logits);
    Architecture {
        program: w.b.build().unwrap(),
        ports: Ports { ids, positions, logit_rows, logits },
        computed: w.computed,
        layers,
        dimensions: Dimensions { layers: 3, hidden_size: HIDDEN, vocab_size: VOCAB, context_length: 512 },
    }
}

fn layers() -> Vec<LayerState> {
    vec![LayerState::Recurrent(NET.state()), LayerState::Kv(ATTENTION), LayerState::Recurrent(NET.state())]
}

fn model_of(architecture: Architecture, kind: WeightType) -> Arc<Model> {
    let mut random = Random(11);
    let mut pack = |out_features: usize, in_features: usize| {
        let values = random.values(out_features * in_features);
        let bytes: Vec<u8> = match kind {
            WeightType::Bf16 => values.iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        PackedWeight::pack(kind, out_features, in_features, &bytes, 1).unwrap()
    };
    let mut constants = Vec::new();
    for &slot in architecture.program.constants() {
        let info = architecture.program.slot(slot);
        let known = architecture.computed.iter().find(|(computed, _)| *computed == slot);
        constants.push((
            slot,
            match (known, &info.shape[..]) {
                (Some((_, values)), _) => Constant::Vector(values.clone()),
                (None, &[out_features, in_features]) => Constant::Matrix(pack(out_features, in_features)),
                (None, &[experts, out_features, in_features]) => {
                    Constant::Experts((0..experts).map(|_| pack(out_features, in_features)).collect())
                }
                (None, shape) => {
                    let values = Random(slot.index() as u64).values(shape.iter().product());
                    Constant::Vector(values.iter().map(|value| 1.0 + value).collect())
                }
            },
        ));
    }
    Arc::new(Model::from_parts(architecture, constants))
}

fn model(kind: WeightType) -> Arc<Model> {
    model_of(architecture(layers()), kind)
}

fn executor(model: &Arc<Model>, threads: usize) -> CpuExecutor {
    CpuExecutor::new(Arc::clone(model), CpuSettings::detect(threads, KvDtype::F32)).unwrap()
}

fn sequence(model: &Model) -> Sequence {
    let spec = model.architecture().kv_spec(KvDtype::F32);
    let reservation = Ledger::new(Budget::Unlimited).reserve(Kind::Kv, spec.bytes(200)).unwrap();
    Sequence::new(&spec, 200, reservation).unwrap()
}

fn prompt(tokens: usize) -> Vec<u32> {
    (0..tokens).map(|i| u32::try_from((7 * i * i + 3 * i + 1) % VOCAB).unwrap()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Feeds tokens in parts; bits of the logits of every row.
fn feed(executor: &mut CpuExecutor, sequence: &mut Sequence, tokens: &[u32], parts: &[usize]) -> Vec<u32> {
    let mut all = Vec::new();
    let (mut at, start) = (0, sequence.len());
    for &rows in parts {
        let tokens = &tokens[at..at + rows];
        let mut segment = [Segment { sequence, tokens, start: start + at }];
        all.extend(bits(executor.run(&mut segment, LogitRows::All, &mut ()).unwrap().values));
        let stats = executor.stats();
        assert_eq!(stats.high_water_bytes, stats.arena_bytes, "{rows} rows from {at}");
        assert_eq!(stats.live_temporaries, 0);
        let plan = executor.plan(&Dims { rows, logit_rows: rows, kv_len: start + at + rows });
        assert_eq!(plan.peak_bytes, stats.arena_bytes, "{rows} rows from {at}");
        at += rows;
        let spec = executor.model().architecture().kv_spec(KvDtype::F32);
        assert_eq!((sequence.len(), sequence.bytes()), (start + at, spec.bytes(start + at)));
    }
    assert_eq!(at, tokens.len());
    all
}

#[test]
fn the_model_has_every_step_it_is_for() {
    let model = model(WeightType::F32);
    let mut names: Vec<_> = model.architecture().program.main().steps().iter().map(|step| step.op.name()).collect();
    names.sort_unstable();
    names.dedup();
    for name in
        ["top_k", "expert_linear", "combine_experts", "scale_rows", "select_columns", "causal_conv", "gated_delta"]
    {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
}

#[test]
fn every_cut_of_a_prompt_and_every_thread_count_give_the_same_bits() {
    for kind in [WeightType::F32, WeightType::Bf16] {
        let model = model(kind);
        let tokens = prompt(75);
        let want = feed(&mut executor(&model, 1), &mut sequence(&model), &tokens, &[75]);
        let single = vec![1; 75];
        let mut cuts: Vec<Vec<usize>> = (1..75).step_by(7).map(|cut| vec![cut, 75 - cut]).collect();
        cuts.extend([vec![75], single, vec![2, 1, 3, 64, 5], vec![63, 1, 1, 10], vec![3; 25]]);
        for (index, parts) in cuts.iter().enumerate() {
            let threads = [1, 2, 4][index % 3];
            let got = feed(&mut executor(&model, threads), &mut sequence(&model), &tokens, parts);
            assert!(got == want, "{kind:?}: {parts:?} with {threads} threads");
        }
    }
}

#[test]
fn a_step_in_parts_gives_the_same_bits() {
    for kind in [WeightType::F32, WeightType::Bf16] {
        let model = model(kind);
        let tokens = prompt(150);
        let want = feed(&mut executor(&model, 1), &mut sequence(&model), &tokens, &[150]);
        for threads in [1, 2] {
            let mut parts = executor(&model, threads).with_part_work(1);
            let got = feed(&mut parts, &mut sequence(&model), &tokens, &[10, 140]);
            assert!(got == want, "{kind:?} with {threads} threads");
        }
    }
}

#[test]
fn sequences_that_share_a_pass_keep_their_bits_and_states() {
    let model = model(WeightType::F32);
    let mut alone = executor(&model, 1);
    let prompts: Vec<Vec<u32>> = [12, 30, 7].iter().map(|&len| prompt(len)).collect();
    let want: Vec<Vec<u32>> =
        prompts.iter().map(|tokens| feed(&mut alone, &mut sequence(&model), tokens, &[tokens.len()])).collect();
    let mut together = executor(&model, 2);
    let mut sequences: Vec<Sequence> = prompts.iter().map(|_| sequence(&model)).collect();
    let mut got: Vec<Vec<u32>> = vec![Vec::new(); 3];
    // Rows of each sequence in each pass; 0 sits the pass out.
    for rows in [[5, 1, 0], [1, 20, 3], [6, 9, 4]] {
        let mut segments = Vec::new();
        for ((sequence, tokens), &rows) in sequences.iter_mut().zip(&prompts).zip(&rows).filter(|(_, rows)| **rows > 0)
        {
            let start = sequence.len();
            segments.push(Segment { sequence, tokens: &tokens[start..start + rows], start });
        }
        let logits = bits(together.run(&mut segments, LogitRows::All, &mut ()).unwrap().values);
        let mut logits = logits.chunks(VOCAB);
        for (got, &rows) in got.iter_mut().zip(&rows) {
            got.extend(logits.by_ref().take(rows).flatten());
        }
    }
    assert!(got == want);
}

/// Cancels after a number of steps.
struct CancelAfter {
    left: usize,
    token: CancelToken,
}

impl StepObserver for CancelAfter {
    fn step(&mut self, _: &StepEvent<'_>) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.token.cancel();
        }
    }
}

#[test]
fn a_pass_cancelled_at_any_step_leaves_state_and_bits_as_they_were() {
    let model = model(WeightType::F32);
    let tokens = prompt(40);
    let want = feed(&mut executor(&model, 1), &mut sequence(&model), &tokens, &[25, 15]);
    let steps = model.architecture().program.main().steps().len();
    for left in 1..steps {
        let mut sequence = sequence(&model);
        let mut got = feed(&mut executor(&model, 1), &mut sequence, &tokens[..25], &[25]);
        let token = CancelToken::new();
        let mut cancelled = executor(&model, 1).with_cancel(token.clone());
        let mut segment = [Segment { sequence: &mut sequence, tokens: &tokens[25..], start: 25 }];
        let result = cancelled.run(&mut segment, LogitRows::All, &mut CancelAfter { left, token });
        assert!(matches!(result, Err(ExecError::Cancelled)), "after {left} of {steps} steps");
        assert_eq!([sequence.len(), sequence.layer_len(0), sequence.layer_len(1)], [25; 3], "after {left} steps");
        got.extend(feed(&mut executor(&model, 1), &mut sequence, &tokens[25..], &[15]));
        assert!(got == want, "after {left} of {steps} steps");
    }
}

#[test]
fn a_recurrent_sequence_goes_back_to_its_start_or_says_why_not() {
    let model = model(WeightType::F32);
    let (mut executor, mut sequence) = (executor(&model, 1), sequence(&model));
    let tokens = prompt(20);
    let want = feed(&mut executor, &mut sequence, &tokens, &[20]);
    let mut run = |sequence: &mut Sequence, start: usize| {
        let mut segment = [Segment { sequence, tokens: &tokens, start }];
        executor.run(&mut segment, LogitRows::All, &mut ()).map(|logits| bits(logits.values))
    };
    let error = run(&mut sequence, 7).unwrap_err();
    let refused = KvError::NeedsPrefill { layer: 0, tokens: 7, len_tokens: 20, from: 0 };
    assert!(matches!(&error, ExecError::Kv { layer: 0, source } if *source == refused), "{error}");
    assert_eq!([sequence.len(), sequence.layer_len(1)], [20; 2]);
    let error = run(&mut sequence, 21).unwrap_err();
    assert!(matches!(&error, ExecError::Kv { source: KvError::Gap { .. }, .. }), "{error}");
    assert!(run(&mut sequence, 0).unwrap() == want, "a second run from the start");
    let mut candle = CandleExecutor::new(Arc::clone(&model), Device::Cpu).unwrap();
    let mut other = CandleSequence::default();
    candle.run(&mut [Segment { sequence: &mut other, tokens: &tokens, start: 0 }], LogitRows::Last).unwrap();
    let mut segment = [Segment { sequence: &mut other, tokens: &tokens, start: 7 }];
    let error = candle.run(&mut segment, LogitRows::Last).unwrap_err();
    assert!(matches!(&error, ExecError::Kv { layer: 0, source } if *source == refused), "{error}");
}

#[test]
fn both_executors_agree_in_every_part_of_a_prompt() {
    let model = model(WeightType::F32);
    let tokens = prompt(30);
    let want = feed(&mut executor(&model, 2), &mut sequence(&model), &tokens, &[30]);
    let mut candle = CandleExecutor::new(Arc::clone(&model), Device::Cpu).unwrap();
    for parts in [&[30][..], &[1, 4, 20, 5]] {
        let (mut sequence, mut at) = (CandleSequence::default(), 0);
        for &rows in parts {
            let tokens = &tokens[at..at + rows];
            let mut segment = [Segment { sequence: &mut sequence, tokens, start: at }];
            let logits = candle.run(&mut segment, LogitRows::All).unwrap();
            let want = &want[at * VOCAB..(at + rows) * VOCAB];
            for (got, want) in logits.flatten_all().unwrap().to_vec1::<f32>().unwrap().iter().zip(want) {
                let want = f32::from_bits(*want);
                assert!((got - want).abs() <= 2e-5 * (1.0 + want.abs()), "{got}, not {want}");
            }
            at += rows;
        }
        assert_eq!((sequence.len(), candle.live_temporaries()), (30, 0));
        let states = 2 * NET.state().elements + 30 * 2 * ATTENTION.head_dim;
        assert_eq!(sequence.bytes(), 4 * states as u64);
    }
}

#[test]
fn a_layer_that_is_described_otherwise_is_refused_before_it_runs() {
    let reason = |layers: Vec<LayerState>| {
        let model = model_of(architecture(layers), WeightType::F32);
        let cpu = CpuExecutor::new(Arc::clone(&model), CpuSettings::detect(1, KvDtype::F32)).err();
        let candle = CandleExecutor::new(model, Device::Cpu).err();
        let [cpu, candle] = [cpu, candle].map(|error| error.map(|error| error.to_string()));
        assert_eq!(cpu, candle);
        cpu
    };
    assert_eq!(reason(layers()), None);
    let kv = LayerState::Kv(ATTENTION);
    let state = LayerState::Recurrent(NET.state());
    let told = |layers: Vec<LayerState>| reason(layers).unwrap();
    let no_state = "(causal_conv): the layer is not described as one that keeps this state";
    assert!(told(vec![kv, kv, state]).ends_with(no_state));
    let short = LayerState::Recurrent(RecurrentSpec { elements: NET.state().elements - 1 });
    assert!(told(vec![state, kv, short]).ends_with(no_state));
    assert!(told(vec![state, kv]).ends_with(no_state));
    let no_kv = "(attend): the layer is not described as one that keeps these keys and values";
    assert!(told(vec![state, LayerState::Stateless, state]).ends_with(no_kv));
    let wider = LayerState::Kv(KvLayerShape { head_dim: 9, ..ATTENTION });
    assert!(told(vec![state, wider, state]).ends_with(no_kv));
}

#[test]
fn a_state_with_a_part_that_no_step_writes_is_refused() {
    let mut whole = architecture(layers());
    let mut b = ProgramBuilder::new();
    let ids = b.input("ids", Extent::PerRow(1), DType::U32);
    let positions = b.input("positions", Extent::PerRow(1), DType::U32);
    let logit_rows = b.input("logit_rows", Extent::PerLogitRow(1), DType::U32);
    let table = b.constant("table", &[VOCAB, HIDDEN], DType::F32);
    let taps = b.constant("taps", &[2 * HIDDEN], DType::F32);
    let state = b.state("state", Extent::Fixed(HIDDEN + 1), DType::F32);
    let tail = b.view(state, 0, HIDDEN);
    let x = b.embed(ids, table);
    let x = b.causal_conv(0, x, taps, None, tail);
    let x = b.select_rows(x, logit_rows);
    let logits = b.linear(x, table);
    b.mark_output(logits);
    whole.program = b.build().unwrap();
    whole.ports = Ports { ids, positions, logit_rows, logits };
    whole.computed.clear();
    whole.layers = vec![LayerState::Recurrent(RecurrentSpec { elements: HIDDEN + 1 })];
    assert!(whole.program.states().iter().all(|&slot| whole.program.slot(slot).kind == SlotKind::State));
    let model = model_of(whole, WeightType::F32);
    let error = CpuExecutor::new(model, CpuSettings::detect(1, KvDtype::F32)).err().unwrap().to_string();
    assert!(error.ends_with("the steps of the layer do not update each element of its state once"), "{error}");
}
