//! What can be asked of an executor's one loop: step times, hashes of what each step wrote, memory while it ran.

use plimsoll_program::Dims;
use sha2::{Digest, Sha256};

/// One finished step, as an observer sees it, before the step's temporaries are released.
#[derive(Debug)]
pub struct StepEvent<'a> {
    /// Index of the step in its chain.
    pub step: usize,
    /// 0 for the main chain; nested chains count from 1.
    pub depth: usize,
    /// Scope in which the step was recorded, such as `layer 3`; empty outside of all.
    pub label: &'a str,
    /// Name of the operation.
    pub op: &'static str,
    /// Sizes of the pass.
    pub dims: Dims,
    /// The bytes that the step wrote, one slice per output slot.
    pub outputs: &'a [&'a [u8]],
}

/// Hears of every step. The executor is generic over it: with `()` nothing of it is compiled in.
pub trait StepObserver: Send {
    /// Whether [`StepObserver::step`] is called at all.
    const ENABLED: bool = true;

    /// A step has run.
    fn step(&mut self, event: &StepEvent<'_>);
}

impl StepObserver for () {
    const ENABLED: bool = false;

    fn step(&mut self, _: &StepEvent<'_>) {}
}

impl<T: StepObserver> StepObserver for &mut T {
    const ENABLED: bool = T::ENABLED;

    fn step(&mut self, event: &StepEvent<'_>) {
        (**self).step(event);
    }
}

/// A step's place and what it wrote, as one comparable line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepHash {
    /// Scope in which the step was recorded.
    pub label: String,
    /// Index of the step in its chain.
    pub step: usize,
    /// Name of the operation.
    pub op: &'static str,
    /// SHA-256 of the bytes written.
    pub sha256: [u8; 32],
}

/// Keeps a hash of every step's outputs: where two runs part, the first differing entry names the layer and the step.
#[derive(Debug, Default)]
pub struct HashSteps {
    /// One entry per step run, in order.
    pub hashes: Vec<StepHash>,
}

impl StepObserver for HashSteps {
    fn step(&mut self, event: &StepEvent<'_>) {
        let mut hash = Sha256::new();
        for bytes in event.outputs {
            hash.update(bytes);
        }
        self.hashes.push(StepHash {
            label: event.label.to_owned(),
            step: event.step,
            op: event.op,
            sha256: hash.finalize().into(),
        });
    }
}
