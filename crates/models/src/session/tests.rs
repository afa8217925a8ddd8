use super::*;
use crate::{
    executor::{
        cost::CpuSettings,
        observer::{StepEvent, StepObserver},
    },
    model::Model,
    testing::{TinyLlama, VOCAB},
};
use candle_core::Device;
use plimsoll_attention::KvDtype;
use plimsoll_memguard::{Budget, Kind, Ledger};
use plimsoll_prefill::{CancelToken, ChunkSize, Driver, DriverOptions, conformance};
use std::{cell::RefCell, num::NonZeroUsize, rc::Rc, sync::Arc};

fn model() -> Arc<Model> {
    Arc::new(Model::from_gguf(&TinyLlama::new().gguf(), 1).unwrap())
}

fn sequence(model: &Model, max_tokens: usize) -> Sequence {
    let spec = model.architecture().kv_spec(KvDtype::F16);
    let reservation = Ledger::new(Budget::Unlimited).reserve(Kind::Kv, spec.bytes(max_tokens)).unwrap();
    Sequence::new(&spec, max_tokens, reservation).unwrap()
}

fn executor(model: &Arc<Model>) -> CpuExecutor {
    CpuExecutor::new(Arc::clone(model), CpuSettings::detect(2, KvDtype::F16)).unwrap()
}

fn session(max_tokens: usize) -> CpuSession {
    let model = model();
    CpuSession::new(executor(&model), sequence(&model, max_tokens), ())
}

fn prompt(tokens: usize) -> Vec<u32> {
    (0..tokens).map(|i| u32::try_from((7 * i + 3) % VOCAB).unwrap()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Rows and the bits of their logits.
type Rows = Vec<(Range<usize>, Vec<u32>)>;

/// A target with the logits that its sink has heard.
struct Heard {
    target: PromptTarget<'static, CpuSession>,
    logits: Rc<RefCell<Rows>>,
}

impl ChunkTarget for Heard {
    type Error = ExecError;

    fn transient_bytes(&self, rows: usize, start: usize) -> u64 {
        self.target.transient_bytes(rows, start)
    }

    fn run(&mut self, chunk: &Chunk) -> Result<(), ExecError> {
        self.target.run(chunk)
    }

    fn drain(&mut self) {
        self.target.drain();
    }

    fn measured_bytes(&self) -> Option<u64> {
        self.target.measured_bytes()
    }
}

fn heard(tokens: usize, logit_rows: LogitRows) -> Heard {
    let logits = Rc::new(RefCell::new(Rows::new()));
    let sink = {
        let logits = Rc::clone(&logits);
        move |rows: Range<usize>, values: &[f32]| logits.borrow_mut().push((rows, bits(values)))
    };
    // A target borrows its parts; the suite wants owned ones. A test may leak.
    let target = PromptTarget::new(
        Box::leak(Box::new(session(tokens))),
        prompt(tokens).leak(),
        logit_rows,
        Box::leak(Box::new(sink)),
    );
    Heard { target, logits }
}

#[test]
fn a_prompt_keeps_the_promises_of_a_chunk_target() {
    let rows_and_bits = |target: &Heard| {
        let heard = target.logits.borrow();
        let ends: Vec<usize> = heard.iter().flat_map(|(rows, _)| rows.clone()).collect();
        (ends, heard.iter().flat_map(|(_, bits)| bits.clone()).collect::<Vec<_>>())
    };
    for logit_rows in [LogitRows::Last, LogitRows::All] {
        conformance::check(150, || heard(150, logit_rows), rows_and_bits);
    }
    conformance::check(2, || heard(2, LogitRows::Last), rows_and_bits);
}

#[test]
fn measured_bytes_of_a_chunk_are_its_price() {
    let mut target = heard(100, LogitRows::Last);
    for (start, rows) in [(0, 64), (64, 35), (99, 1)] {
        let planned_bytes = target.transient_bytes(rows, start);
        target.run(&Chunk { start, rows, last: start + rows == 100 }).unwrap();
        assert_eq!(target.measured_bytes(), Some(planned_bytes), "rows {rows} from {start}");
    }
}

#[test]
fn tokens_that_no_pass_can_take_leave_the_session_as_it_was() {
    let mut session = session(8);
    session.extend(&[1, 2, 3], LogitRows::Last).unwrap();
    let fault = |session: &mut CpuSession, tokens: &[u32]| {
        let error = session.extend(tokens, LogitRows::Last).expect_err("cannot run");
        assert_eq!(session.len(), 3, "{error}");
        error.to_string()
    };
    assert_eq!(fault(&mut session, &[]), "segment 0 of the pass has no tokens");
    let outside = fault(&mut session, &[4, 32]);
    assert_eq!(outside, "token id 32 in row 1 is outside of the vocabulary of 32");
    let full = fault(&mut session, &[1; 6]);
    assert_eq!(full, "layer 0: layer 0: rows end at token 9, the sequence holds at most 8");
    let after = bits(session.extend(&[4, 5], LogitRows::Last).unwrap().values);
    let mut whole = self::session(8);
    assert_eq!(after, bits(whole.extend(&[1, 2, 3, 4, 5], LogitRows::Last).unwrap().values));
}

#[test]
fn a_pass_without_tokens_or_past_32_bit_positions_is_refused() {
    let model = model();
    let (mut executor, mut sequence) = (executor(&model), sequence(&model, 4));
    let error = executor.run(&mut [], LogitRows::Last, &mut ()).unwrap_err();
    assert!(matches!(error, ExecError::EmptyPass), "{error}");
    let start = u32::MAX as usize;
    let error = executor.run(&mut [Segment { sequence: &mut sequence, tokens: &[1], start }], LogitRows::Last, &mut ());
    assert!(matches!(error, Err(ExecError::PositionsPast32Bits { .. })), "{error:?}");
    let error =
        executor.run(&mut [Segment { sequence: &mut sequence, tokens: &[1], start: 2 }], LogitRows::Last, &mut ());
    assert!(matches!(error, Err(ExecError::Kv { layer: 0, .. })), "{error:?}");
    assert!(sequence.is_empty());
}

/// Sets the flag after `left` steps.
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
fn a_cancelled_pass_leaves_every_sequence_at_its_start() {
    let model = model();
    let steps = model.architecture().program.chains()[0].steps().len();
    let (held, more) = (prompt(70), prompt(20));
    let mut whole = sequence(&model, 90);
    let mut undisturbed = executor(&model);
    let tokens = [&held[..], &more[..]].concat();
    let mut pass = [Segment { sequence: &mut whole, tokens: &tokens, start: 0 }];
    let want = bits(undisturbed.run(&mut pass, LogitRows::Last, &mut ()).unwrap().values);

    // Before the first step, after the first layer took its rows, after the last layer did; only a finished pass stays.
    for left in [0, 1, steps / 2, steps - 1] {
        let (mut first, mut second) = (sequence(&model, 90), sequence(&model, 90));
        let mut run = |executor: &mut CpuExecutor, observer: &mut CancelAfter, tokens: &[u32], start| {
            let mut pass =
                [Segment { sequence: &mut first, tokens, start }, Segment { sequence: &mut second, tokens, start }];
            let result = executor.run(&mut pass, LogitRows::Last, observer).map(|logits| bits(logits.last().unwrap()));
            let lens = [first.len(), first.layer_len(0), second.len(), second.layer_len(0)];
            (result, lens)
        };
        let mut idle = CancelAfter { left: usize::MAX, token: CancelToken::new() };
        run(&mut executor(&model), &mut idle, &held, 0).0.unwrap();
        let token = CancelToken::new();
        if left == 0 {
            token.cancel();
        }
        let mut cancelled = executor(&model).with_cancel(token.clone());
        let (result, lens) = run(&mut cancelled, &mut CancelAfter { left, token }, &more, 70);
        assert!(matches!(result, Err(ExecError::Cancelled)), "after {left} of {steps} steps: {result:?}");
        assert_eq!(lens, [70; 4], "after {left} of {steps} steps");
        let (result, lens) = run(&mut executor(&model), &mut idle, &more, 70);
        assert_eq!((result.unwrap(), lens), (want.clone(), [90; 4]), "after {left} of {steps} steps");
    }
}

#[test]
fn a_prompt_that_ran_out_of_memory_goes_on_from_where_it_was() {
    let ledger = Ledger::new(Budget::Bytes(1 << 30));
    let tokens = prompt(300);
    let mut options = DriverOptions::new(ledger.clone());
    options.chunk = ChunkSize::Fixed(NonZeroUsize::new(100).unwrap());
    let driver = Driver::new(options);
    let run = |session: &mut CpuSession, from: usize, taken: &mut dyn FnMut()| {
        let mut last = Vec::new();
        let mut sink = |_: Range<usize>, values: &[f32]| last = bits(values);
        let mut target = PromptTarget::new(session, &tokens, LogitRows::Last, &mut sink);
        let outcome = driver.run(&mut target, from..300, &CancelToken::new(), |_| taken());
        (outcome.map(|report| report.done_tokens()).map_err(|error| error.done_tokens), last)
    };
    let (whole, want) = run(&mut session(300), 0, &mut || ());
    assert_eq!(whole, Ok(300));

    // Another request takes all that is left once the first chunk is done.
    let mut session = session(300);
    let mut other = None;
    let (stopped, nothing) = run(&mut session, 0, &mut || {
        other = ledger.reserve(Kind::Kv, ledger.usage().free_bytes().unwrap()).ok();
    });
    assert_eq!((stopped, nothing.len(), session.len()), (Err(100), 0, 100));
    drop(other);
    let (rest, got) = run(&mut session, 100, &mut || ());
    assert_eq!(rest, Ok(200));
    assert!(got == want, "other bits after the error");
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}

#[test]
fn a_session_counts_what_it_keeps() {
    let mut session = session(200);
    assert_eq!((session.kept_bytes(), session.kv_bytes()), (Some(0), 0));
    for rows in [30, 64, 70] {
        let (before, growth) = (session.kv_bytes(), session.kv_growth_bytes(rows));
        session.extend(&prompt(rows), LogitRows::None).unwrap();
        assert_eq!(session.kv_bytes() - before, growth, "{rows} rows");
        assert_eq!(session.kept_bytes(), session.measured_bytes());
    }
}

#[test]
fn a_candle_session_agrees_and_refuses_the_same() {
    let mut candle = CandleSession::new(CandleExecutor::new(model(), Device::Cpu).unwrap());
    let mut cpu = session(16);
    for tokens in [&[1, 2, 3][..], &[4], &[5, 6]] {
        let want = cpu.extend(tokens, LogitRows::All).unwrap().values.to_vec();
        let got = candle.extend(tokens, LogitRows::All).unwrap();
        assert_eq!(got.rows, tokens.len());
        // Keys and values of the one are f16.
        assert!(got.values.iter().zip(&want).all(|(a, b)| (a - b).abs() < 2e-2), "{:?}, {want:?}", got.values);
    }
    assert!(matches!(candle.extend(&[], LogitRows::Last), Err(ExecError::EmptySegment { segment: 0 })));
    assert!(matches!(candle.extend(&[99], LogitRows::Last), Err(ExecError::TokenOutsideVocab { id: 99, .. })));
    assert_eq!((candle.len(), cpu.len()), (6, 6));
}
