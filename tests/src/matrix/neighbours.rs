//! A request in passes that have rows of other sequences too.

use super::{
    answer::{Answer, Recorder},
    request::Request,
};
use crate::{
    random::Random,
    row_trace::{OwnRows, PassObserver},
};
use anyhow::Result;
use plimsoll_kvcache::Sequence;
use plimsoll_models::{LogitRows, Segment};

/// Most rows of the request in one pass.
const MOST_ROWS: usize = 512;
/// Longest other sequence.
const MOST_OTHER_TOKENS: usize = 150;

/// Another sequence, which goes through the model in parts of its own.
struct Other {
    tokens: Vec<u32>,
    done: usize,
    sequence: Sequence,
}

impl Other {
    fn new(request: &Request<'_>, random: &mut Random) -> Result<Self> {
        let count = 1 + random.below(MOST_OTHER_TOKENS);
        let tokens = random.tokens(count, request.subject.vocab_size());
        Ok(Self { tokens, done: 0, sequence: request.sequence(count)? })
    }

    /// The next rows: half the time one, as in decode.
    fn next(&mut self, random: &mut Random) -> Segment<'_> {
        let left = self.tokens.len() - self.done;
        let most = if random.below(2) == 0 { 1 } else { left };
        let start = self.done;
        self.done += 1 + random.below(most);
        Segment { sequence: &mut self.sequence, tokens: &self.tokens[start..self.done], start }
    }
}

/// Runs the request beside `count` others at any time; where one ends, another begins. Its rows are somewhere among theirs.
pub(super) fn beside<O: PassObserver>(
    request: &Request<'_>,
    count: usize,
    seed: u64,
    observer: &mut O,
) -> Result<Answer> {
    let mut random = Random::new(seed);
    let mut executor = request.executor(request.settings)?;
    let mut sequence = request.sequence(request.context())?;
    let mut others = (0..count).map(|_| Other::new(request, &mut random)).collect::<Result<Vec<_>>>()?;
    let (mut recorder, mut done) = (Recorder::default(), 0);
    let prompt = request.prompt;
    while !recorder.is_full() {
        let last;
        let tokens = if done < prompt.len() {
            &prompt[done..prompt.len().min(done + 1 + random.below(MOST_ROWS))]
        } else {
            last = [*recorder.tokens().last().expect("the prompt's last row gave a token")];
            &last
        };
        for other in others.iter_mut().filter(|other| other.done == other.tokens.len()) {
            *other = Other::new(request, &mut random)?;
        }
        let place = random.below(count + 1);
        let mut segments: Vec<Segment<'_>> = others.iter_mut().map(|other| other.next(&mut random)).collect();
        let before: usize = segments[..place].iter().map(|segment| segment.tokens.len()).sum();
        segments.insert(place, Segment { sequence: &mut sequence, tokens, start: done });
        observer.pass(OwnRows { rows: before..before + tokens.len(), start: done, logits: place..place + 1 });
        let logits = executor.run(&mut segments, LogitRows::Last, observer)?;
        done += tokens.len();
        if done >= prompt.len() {
            recorder.take(&logits.values[place * logits.vocab_size..][..logits.vocab_size]);
        }
    }
    recorder.answer()
}
