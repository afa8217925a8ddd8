//! Measures how soon a pass gives up once it is cancelled: at random moments, with the best instruction set of this CPU and with plain code.
//! One line each, times in order.
#![expect(clippy::print_stdout, reason = "a program's output")]

use anyhow::{Result, ensure};
use plimsoll_attention::KvDtype;
use plimsoll_kvcache::Sequence;
use plimsoll_memguard::{Budget, Kind, Ledger};
use plimsoll_models::{CpuExecutor, CpuSettings, ExecError, LogitRows, Segment};
use plimsoll_prefill::CancelToken;
use plimsoll_tests::{model::RandomLlama, random::Random};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const TRIALS: usize = 24;

/// Tokens before the pass, and rows of it.
const HELD: usize = 16_000;
const ROWS: usize = 512;

fn main() -> Result<()> {
    let sizes = RandomLlama {
        layers: 2,
        hidden_size: 768,
        intermediate_size: 3072,
        heads: 12,
        kv_heads: 4,
        vocab_size: 500,
        sliding_window: None,
    };
    let model = sizes.model(1)?;
    let detected = CpuSettings::detect(2, KvDtype::Bf16);
    let scalar = CpuSettings {
        linear_isa: plimsoll_linear::Isa::Scalar,
        attention_isa: plimsoll_attention::Isa::Scalar,
        ..detected
    };
    let spec = detected.kv_spec(model.architecture());
    let ledger = Ledger::new(Budget::Unlimited);
    let mut sequence = Sequence::new(&spec, HELD + ROWS, ledger.reserve(Kind::Kv, spec.bytes(HELD + ROWS))?)?;
    let width = sizes.kv_heads * sizes.hidden_size / sizes.heads;
    let values: Vec<f32> = (0..HELD * width).map(|i| (i * 7919 % 1024) as f32 / 1024.0 - 0.5).collect();
    for layer in 0..sizes.layers {
        sequence.append(layer, 0, &values, &values, HELD)?;
    }
    sequence.commit();
    let mut random = Random::new(2);
    let tokens = random.tokens(ROWS, sizes.vocab_size);
    for settings in [detected, scalar] {
        let mut times = Vec::new();
        for _ in 0..TRIALS {
            let cancel = CancelToken::new();
            let mut executor = CpuExecutor::new(Arc::clone(&model), settings)?.with_cancel(cancel.clone());
            let delay = Duration::from_millis(random.below(500) as u64);
            let canceller = thread::spawn(move || {
                thread::sleep(delay);
                cancel.cancel();
                Instant::now()
            });
            let mut segment = [Segment { sequence: &mut sequence, tokens: &tokens, start: HELD }];
            let is_cancelled =
                matches!(executor.run(&mut segment, LogitRows::Last, &mut ()), Err(ExecError::Cancelled));
            let returned = Instant::now();
            let asked = canceller.join().expect("it only sleeps");
            if is_cancelled {
                times.push(returned.duration_since(asked));
                ensure!(sequence.len() == HELD, "{} tokens are held after a cancel", sequence.len());
            }
            sequence.truncate(HELD)?;
        }
        times.sort_unstable();
        let name = settings.linear_isa.name();
        println!("cancelled with {name}: {} of {TRIALS} inside of the pass, returned after {times:.0?}", times.len());
    }
    Ok(())
}
