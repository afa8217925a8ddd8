//! Hand-made programs with branches and recurrences: both executors against plain code.

use super::{
    candle::{CandleExecutor, CandleSequence},
    cost::CpuSettings,
    cpu::CpuExecutor,
    pass::{ExecError, LogitRows, Segment},
};
use crate::{
    arch::{Architecture, Dimensions, Ports},
    model::{Constant, Model},
    testing::Random,
};
use candle_core::Device;
use plimsoll_attention::KvDtype;
use plimsoll_kvcache::{KvSpec, Sequence};
use plimsoll_linear::{PackedWeight, WeightType};
use plimsoll_memguard::{Budget, Kind, Ledger};
use plimsoll_program::{Condition, DType, Extent, ProgramBuilder, ScanValues, Slot, Unary};
use std::sync::Arc;

const VOCAB: usize = 11;
const WIDTH: usize = 6;

/// A model without attention: `body` makes `[rows, WIDTH]` of the embedded tokens and one weight `[WIDTH, WIDTH]`; a head follows.
struct Recurrent {
    model: Arc<Model>,
    table: Vec<f32>,
    weight: Vec<f32>,
    head: Vec<f32>,
}

impl Recurrent {
    fn new(body: impl FnOnce(&mut ProgramBuilder, Slot, Slot) -> Slot) -> Self {
        let mut b = ProgramBuilder::new();
        let ids = b.input("ids", Extent::PerRow(1), DType::U32);
        let positions = b.input("positions", Extent::PerRow(1), DType::U32);
        let logit_rows = b.input("logit_rows", Extent::PerLogitRow(1), DType::U32);
        let table_slot = b.constant("table", &[VOCAB, WIDTH], DType::F32);
        let weight_slot = b.constant("weight", &[WIDTH, WIDTH], DType::F32);
        let head_slot = b.constant("head", &[VOCAB, WIDTH], DType::F32);
        let x = b.embed(ids, table_slot);
        let y = body(&mut b, x, weight_slot);
        let y = b.select_rows(y, logit_rows);
        let logits = b.linear(y, head_slot);
        b.mark_output(logits);
        let architecture = Architecture {
            program: b.build().unwrap(),
            ports: Ports { ids, positions, logit_rows, logits },
            computed: Vec::new(),
            layers: Vec::new(),
            dimensions: Dimensions { layers: 0, hidden_size: WIDTH, vocab_size: VOCAB, context_length: 64 },
        };
        let mut random = Random(7);
        let mut table = random.values(VOCAB * WIDTH);
        table[..WIDTH].fill(0.0); // token 0 is all zeros: what `Nonzero` asks for
        let (weight, head) = (random.values(WIDTH * WIDTH), random.values(VOCAB * WIDTH));
        let pack = |values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Constant::Matrix(PackedWeight::pack(WeightType::F32, values.len() / WIDTH, WIDTH, &bytes, 1).unwrap())
        };
        let constants = vec![(table_slot, pack(&table)), (weight_slot, pack(&weight)), (head_slot, pack(&head))];
        Self { model: Arc::new(Model::from_parts(architecture, constants)), table, weight, head }
    }

    fn on_cpu(&self, tokens: &[u32], threads: usize) -> Vec<f32> {
        let spec = KvSpec::default();
        let reservation = Ledger::new(Budget::Unlimited).reserve(Kind::Kv, 0).unwrap();
        let mut sequence = Sequence::new(&spec, 64, reservation).unwrap();
        let settings = CpuSettings::detect(threads, KvDtype::F32);
        let mut executor = CpuExecutor::new(Arc::clone(&self.model), settings).unwrap();
        let mut segments = [Segment { sequence: &mut sequence, tokens, start: 0 }];
        let values = executor.run(&mut segments, LogitRows::All, &mut ()).unwrap().values.to_vec();
        let stats = executor.stats();
        assert_eq!(stats.live_temporaries, 0, "temporaries are left");
        assert!(stats.high_water_bytes <= stats.arena_bytes, "{stats:?}");
        values
    }

    fn on_candle(&self, tokens: &[u32]) -> Vec<f32> {
        let mut executor = CandleExecutor::new(Arc::clone(&self.model), Device::Cpu).unwrap();
        let mut sequence = CandleSequence::default();
        let mut segments = [Segment { sequence: &mut sequence, tokens, start: 0 }];
        let logits = executor.run(&mut segments, LogitRows::All).unwrap();
        assert_eq!(executor.live_temporaries(), 0, "temporaries are left");
        logits.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// `plain` makes the rows before the head of the embedded rows, in f64.
    fn check(&self, tokens: &[u32], plain: impl Fn(&[Vec<f64>]) -> Vec<Vec<f64>>) {
        let embedded: Vec<Vec<f64>> = tokens
            .iter()
            .map(|&id| self.table[id as usize * WIDTH..][..WIDTH].iter().map(|&value| value.into()).collect())
            .collect();
        let want: Vec<f64> = plain(&embedded).iter().flat_map(|row| product(row, &self.head)).collect();
        for (name, got) in [("cpu", self.on_cpu(tokens, 1)), ("candle", self.on_candle(tokens))] {
            assert_eq!(got.len(), want.len(), "{name}");
            for (index, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!((f64::from(*got) - want).abs() < 1e-5, "{name}, value {index}: {got}, want {want}");
            }
        }
        let one = self.on_cpu(tokens, 1);
        let three = self.on_cpu(tokens, 3);
        assert!(one.iter().zip(&three).all(|(a, b)| a.to_bits() == b.to_bits()), "threads changed bits");
    }
}

/// `weight x`, the weight row-major with rows of `WIDTH`.
fn product(x: &[f64], weight: &[f32]) -> Vec<f64> {
    weight.chunks_exact(WIDTH).map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
}

fn map(rows: &[Vec<f64>], f: impl Fn(f64) -> f64) -> Vec<Vec<f64>> {
    rows.iter().map(|row| row.iter().map(|&x| f(x)).collect()).collect()
}

#[test]
fn a_branch_on_the_number_of_rows_is_the_same_on_both_executors() {
    // The branches differ, so that taking the wrong one shows.
    let model = Recurrent::new(|b, x, _| {
        b.if_(Condition::RowsAtMost(2), |b| vec![b.scale(x, 3.0)], |b| vec![b.unary(x, Unary::Neg)])[0]
    });
    model.check(&[3, 4], |rows| map(rows, |x| 3.0 * x));
    model.check(&[3, 4, 5], |rows| map(rows, |x| -x));
}

#[test]
fn a_branch_on_a_value_is_the_same_on_both_executors() {
    let model = Recurrent::new(|b, x, weight| {
        let total = b.sum(x);
        let results = b.if_(
            Condition::Nonzero(total),
            |b| {
                let y = b.linear(x, weight);
                vec![b.unary_assign(y, Unary::Square), b.scale(x, 2.0)]
            },
            |b| vec![b.fill(0.25, Extent::PerRow(WIDTH)), b.copy(x)],
        );
        b.add(results[0], results[1])
    });
    let weight = model.weight.clone();
    model.check(&[3, 4, 9], |rows| {
        let with_products =
            |row: &Vec<f64>| product(row, &weight).iter().zip(row).map(|(y, x)| y * y + 2.0 * x).collect();
        rows.iter().map(with_products).collect()
    });
    model.check(&[0, 0], |rows| map(rows, |x| 0.25 + x));
}

#[test]
fn a_recurrence_with_a_branch_inside_is_the_same_on_both_executors() {
    // s <- 0.5 s + x, or -s where x is zero; y = W s; and the last s is added to every row.
    let model = Recurrent::new(|b, x, weight| {
        let start = b.fill(0.5, Extent::Fixed(WIDTH));
        let scanned = b.scan(&[x], &[start], |b, rows, carries| {
            let total = b.sum(rows[0]);
            let next = b.if_(
                Condition::Nonzero(total),
                |b| {
                    let decayed = b.scale(carries[0], 0.5);
                    vec![b.add_assign(decayed, rows[0])]
                },
                |b| vec![b.unary(carries[0], Unary::Neg)],
            );
            let y = b.linear(next[0], weight);
            ScanValues { carries: next, outputs: vec![y] }
        });
        b.add(scanned.outputs[0], scanned.carries[0])
    });
    let weight = model.weight.clone();
    let plain = |rows: &[Vec<f64>]| {
        let mut s = vec![0.5f64; WIDTH];
        let mut out = Vec::new();
        for row in rows {
            let zero = row.iter().all(|&x| x == 0.0);
            s = s.iter().zip(row).map(|(s, x)| if zero { -s } else { 0.5 * s + x }).collect();
            out.push(product(&s, &weight));
        }
        out.iter().map(|row| row.iter().zip(&s).map(|(y, s)| y + s).collect()).collect()
    };
    model.check(&[3], plain);
    model.check(&[3, 0, 4, 4, 0, 0, 10, 1], plain);
}

#[test]
fn two_carries_and_a_scan_in_a_branch_keep_apart() {
    // Fibonacci-like: (a, b) <- (b, a + x).
    let model = Recurrent::new(|b, x, _| {
        b.if_(
            Condition::RowsAtMost(8),
            |b| {
                let (first, second) = (b.fill(1.0, Extent::Fixed(WIDTH)), b.fill(2.0, Extent::Fixed(WIDTH)));
                let scanned = b.scan(&[x], &[first, second], |b, rows, carries| {
                    let next = b.add(carries[0], rows[0]);
                    let second = b.copy(carries[1]);
                    ScanValues { carries: vec![second, next], outputs: vec![next] }
                });
                vec![b.mul(scanned.outputs[0], scanned.carries[1])]
            },
            |b| vec![b.copy(x)],
        )[0]
    });
    model.check(&[5, 6, 7, 8, 9], |rows| {
        let (mut a, mut b) = (vec![1.0; WIDTH], vec![2.0; WIDTH]);
        let mut out = Vec::new();
        for row in rows {
            let next: Vec<f64> = a.iter().zip(row).map(|(a, x)| a + x).collect();
            out.push(next.clone());
            (a, b) = (b, next);
        }
        out.iter().map(|row| row.iter().zip(&b).map(|(y, b)| y * b).collect()).collect()
    });
}

#[test]
fn a_segment_past_what_a_candle_sequence_holds_is_refused() {
    let model = Recurrent::new(|b, x, _| b.copy(x));
    let mut executor = CandleExecutor::new(Arc::clone(&model.model), Device::Cpu).unwrap();
    let mut sequence = CandleSequence::default();
    let mut segments = [Segment { sequence: &mut sequence, tokens: &[1, 2], start: 3 }];
    let error = executor.run(&mut segments, LogitRows::Last).unwrap_err();
    let gap = plimsoll_kvcache::Error::Gap { layer: 0, start: 3, len_tokens: 0 };
    assert!(matches!(&error, ExecError::Kv { source, .. } if *source == gap), "{error}");
    assert!(sequence.is_empty());
}
