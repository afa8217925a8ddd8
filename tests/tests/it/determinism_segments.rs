//! A sequence's bits do not depend on what else runs: in the same pass, before it, or for it (prefill or decode).

use crate::determinism::{KV_DTYPES, Outcome, outcome};
use anyhow::{Result, ensure};
use plimsoll_kvcache::Sequence;
use plimsoll_models::{CpuExecutor, LogitRows, Segment};
use plimsoll_tests::{
    compare::{RowHash, hash_rows},
    pass::{chunks, feed, new_sequence},
    random::Random,
    subject::Subject,
};

/// A sequence under way: its tokens and what it has gained so far.
struct Stream {
    tokens: Vec<u32>,
    sequence: Sequence,
    rows: Vec<RowHash>,
}

impl Stream {
    fn new(subject: &Subject, executor: &CpuExecutor, tokens: Vec<u32>) -> Result<Self> {
        let sequence = new_sequence(&subject.model, executor.settings().kv_dtype, tokens.len())?;
        Ok(Self { tokens, sequence, rows: Vec::new() })
    }

    /// The rows of the whole in one pass, alone.
    fn alone(subject: &Subject, executor: &mut CpuExecutor, tokens: Vec<u32>) -> Result<Vec<RowHash>> {
        let mut this = Self::new(subject, executor, tokens)?;
        let parts = [this.tokens.len()];
        feed(executor, &mut this.sequence, &this.tokens, &parts, LogitRows::All, &mut (), |_, logits| {
            this.rows.extend(hash_rows(logits, subject.vocab_size()));
        })?;
        Ok(this.rows)
    }
}

/// Passes of random parts of all streams, in random order, until all have ended.
fn run_together(
    subject: &Subject,
    executor: &mut CpuExecutor,
    streams: &mut [Stream],
    random: &mut Random,
) -> Result<()> {
    while streams.iter().any(|stream| stream.rows.len() < stream.tokens.len()) {
        let mut order: Vec<&mut Stream> =
            streams.iter_mut().filter(|stream| stream.rows.len() < stream.tokens.len()).collect();
        let turn = random.below(order.len());
        order.rotate_left(turn);
        let mut counts = Vec::new();
        let mut segments = Vec::new();
        let mut sinks = Vec::new();
        for stream in order {
            let start = stream.rows.len();
            let left = stream.tokens.len() - start;
            let most = if random.below(2) == 0 { 1 } else { left };
            let rows = 1 + random.below(most);
            counts.push(rows);
            segments.push(Segment {
                sequence: &mut stream.sequence,
                tokens: &stream.tokens[start..start + rows],
                start,
            });
            sinks.push(&mut stream.rows);
        }
        let logits = executor.run(&mut segments, LogitRows::All, &mut ())?;
        let mut hashes = hash_rows(logits.values, subject.vocab_size()).into_iter();
        for (rows, count) in sinks.into_iter().zip(counts) {
            rows.extend(hashes.by_ref().take(count));
        }
    }
    Ok(())
}

#[test]
fn bits_do_not_depend_on_other_sequences_in_the_pass() -> Result<()> {
    let mut random = Random::new(2);
    for subject in Subject::all(150)? {
        for dtype in KV_DTYPES {
            let mut executor = subject.executor(2, dtype)?;
            for others in 1..=3 {
                let mut prompts = vec![subject.prompt.clone()];
                for _ in 0..others {
                    let rows = 1 + random.below(140);
                    prompts.push(random.tokens(rows, subject.vocab_size()));
                }
                let mut streams = prompts
                    .iter()
                    .map(|prompt| Stream::new(&subject, &executor, prompt.clone()))
                    .collect::<Result<Vec<_>>>()?;
                run_together(&subject, &mut executor, &mut streams, &mut random)?;
                for (index, (stream, prompt)) in streams.iter().zip(prompts).enumerate() {
                    let alone = Stream::alone(&subject, &mut executor, prompt)?;
                    let row = stream.rows.iter().zip(&alone).position(|(got, want)| got != want);
                    ensure!(
                        row.is_none() && stream.rows.len() == alone.len(),
                        "{} KV {dtype:?}, sequence {index} of {}: row {row:?} has other bits than alone",
                        subject.name,
                        others + 1
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn bits_do_not_depend_on_the_passes_before() -> Result<()> {
    let mut random = Random::new(3);
    for subject in Subject::all(150)? {
        let rows = subject.prompt.len();
        for dtype in KV_DTYPES {
            let want = outcome(&mut subject.executor(2, dtype)?, &subject, &[rows])?;
            // Arena, scratch and block table have been used by passes of other sizes.
            let mut executor = subject.executor(2, dtype)?;
            for other_rows in [3, 130, 64] {
                let tokens = random.tokens(other_rows, subject.vocab_size());
                Stream::alone(&subject, &mut executor, tokens)?;
            }
            ensure!(outcome(&mut executor, &subject, &[rows])? == want, "{} KV {dtype:?}: after others", subject.name);
            executor.release_arena();
            ensure!(outcome(&mut executor, &subject, &[rows])? == want, "{} KV {dtype:?}: new arena", subject.name);

            // A sequence that held other tokens, cut back into the middle of a KV block, or to where recurrent state can go back to.
            let keep = rows / 2;
            let mut other = subject.prompt[..keep].to_vec();
            other.extend(random.tokens(rows - keep + 70, subject.vocab_size()));
            let mut stream = Stream::new(&subject, &executor, other)?;
            let parts = [stream.tokens.len()];
            feed(&mut executor, &mut stream.sequence, &stream.tokens, &parts, LogitRows::None, &mut (), |_, _| {})?;
            let keep = match stream.sequence.truncate(keep) {
                Ok(()) => keep,
                Err(plimsoll_kvcache::Error::NeedsPrefill { from, .. }) => {
                    stream.sequence.truncate(from)?;
                    from
                }
                Err(error) => return Err(error.into()),
            };
            let mut got = Vec::new();
            let rest = &subject.prompt[keep..];
            feed(&mut executor, &mut stream.sequence, rest, &[rest.len()], LogitRows::All, &mut (), |_, logits| {
                got.extend(hash_rows(logits, subject.vocab_size()));
            })?;
            ensure!(got[..] == want.rows[keep..rows], "{} KV {dtype:?}: after a cut to {keep}", subject.name);
        }
    }
    Ok(())
}

#[test]
fn decoded_rows_have_the_bits_of_prefilled_ones() -> Result<()> {
    for subject in Subject::all(150)? {
        for dtype in KV_DTYPES {
            let mut executor = subject.executor(2, dtype)?;
            let Outcome { rows, greedy } = outcome(&mut executor, &subject, &chunks(subject.prompt.len(), 64))?;
            let tokens = [&subject.prompt[..], &greedy[..greedy.len() - 1]].concat();
            let prefilled = Stream::alone(&subject, &mut executor, tokens)?;
            ensure!(rows == prefilled, "{} KV {dtype:?}: decode and prefill differ", subject.name);
        }
    }
    Ok(())
}

#[test]
fn a_last_row_alone_has_the_bits_it_has_among_all_rows() -> Result<()> {
    for subject in Subject::all(150)? {
        for dtype in KV_DTYPES {
            let mut executor = subject.executor(1, dtype)?;
            let all = Stream::alone(&subject, &mut executor, subject.prompt.clone())?;
            let mut sequence = new_sequence(&subject.model, dtype, subject.prompt.len())?;
            let parts = [subject.prompt.len()];
            feed(&mut executor, &mut sequence, &subject.prompt, &parts, LogitRows::Last, &mut (), |range, logits| {
                assert_eq!((range.len(), hash_rows(logits, subject.vocab_size())), (1, vec![all[range.start]]));
            })?;
        }
    }
    Ok(())
}
