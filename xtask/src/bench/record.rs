//! Two sides compared: the Markdown that people read and the CSV it was made from.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::machine::Machine;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Ours,
    Peer,
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "plimsoll",
            Self::Peer => "candle-transformers quantized_llama",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Measurement {
    pub(super) side: Side,
    pub(super) round: usize,
    pub(super) tokens: usize,
    pub(super) seconds: f64,
}

impl Measurement {
    #[expect(clippy::cast_precision_loss, reason = "a prompt has far fewer than 2^53 tokens")]
    pub(super) fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// All measurements of one run of the chore.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) title: String,
    pub(super) command: String,
    /// In the order they were made.
    pub(super) measurements: Vec<Measurement>,
    pub(super) load_before: String,
    pub(super) load_after: String,
}

/// Tokens per second of one side.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Summary {
    median: f64,
    min: f64,
    max: f64,
    runs: usize,
}

impl Comparison {
    /// One line per measurement, in the order they were made.
    pub(super) fn csv(&self) -> String {
        let mut csv = "round,side,tokens,seconds,tokens_per_second\n".to_owned();
        for measurement in &self.measurements {
            let Measurement { side, round, tokens, seconds } = measurement;
            let rate = measurement.tokens_per_second();
            let _ = writeln!(csv, "{},{},{tokens},{seconds:.6},{rate:.3}", round + 1, side.name());
        }
        csv
    }

    /// # Errors
    /// If a side was not measured at all.
    pub(super) fn markdown(&self, machine: &Machine) -> Result<String> {
        let ours = self.summary(Side::Ours)?;
        let peer = self.summary(Side::Peer)?;
        let mut text = format!("# {}\n\n", self.title);
        text.push_str("| side | tokens/s, median | min | max | spread | runs |\n|---|---|---|---|---|---|\n");
        for (side, summary) in [(Side::Ours, ours), (Side::Peer, peer)] {
            let Summary { median, min, max, runs } = summary;
            let spread = 100.0 * (max - min) / median;
            let _ = writeln!(text, "| {} | {median:.1} | {min:.1} | {max:.1} | {spread:.1}% | {runs} |", side.name());
        }
        let _ = write!(
            text,
            "\nRatio of the medians: **{:.2}**. Sides take turns, each measurement in a fresh process; loading is not timed.\n\n\
             - Command: `{}`\n- Machine: {}, {} cores\n- {}, commit {}, {}\n- Load average before: {}; after: {}\n",
            ours.median / peer.median,
            self.command,
            machine.cpu,
            machine.cores,
            machine.rustc,
            machine.commit,
            machine.date,
            self.load_before,
            self.load_after,
        );
        Ok(text)
    }

    fn summary(&self, side: Side) -> Result<Summary> {
        let of_side = self.measurements.iter().filter(|measurement| measurement.side == side);
        let mut rates: Vec<f64> = of_side.map(Measurement::tokens_per_second).collect();
        rates.sort_by(f64::total_cmp);
        let runs = rates.len();
        let (min, max) =
            rates.first().zip(rates.last()).with_context(|| format!("{} was not measured", side.name()))?;
        // The middle one, or the mean of the two in the middle.
        let median = (rates[(runs - 1) / 2] + rates[runs / 2]) / 2.0;
        Ok(Summary { median, min: *min, max: *max, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(seconds: &[(Side, f64)]) -> Comparison {
        let of = |(round, (side, seconds)): (usize, &(Side, f64))| Measurement {
            side: *side,
            round,
            tokens: 100,
            seconds: *seconds,
        };
        Comparison {
            title: "Title".to_owned(),
            command: "command".to_owned(),
            measurements: seconds.iter().enumerate().map(of).collect(),
            load_before: "0.1".to_owned(),
            load_after: "0.2".to_owned(),
        }
    }

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_two_in_the_middle() {
        let ours = |seconds: &[f64]| comparison(&seconds.iter().map(|s| (Side::Ours, *s)).collect::<Vec<_>>());
        let odd = ours(&[1.0, 4.0, 2.0]).summary(Side::Ours).unwrap();
        assert_eq!(odd, Summary { median: 50.0, min: 25.0, max: 100.0, runs: 3 });
        let even = ours(&[1.0, 4.0]).summary(Side::Ours).unwrap();
        assert_eq!(even, Summary { median: 62.5, min: 25.0, max: 100.0, runs: 2 });
    }

    #[test]
    fn the_record_states_medians_ratio_and_circumstances() {
        let markdown = comparison(&[(Side::Ours, 0.5), (Side::Peer, 2.0)]).markdown(&Machine::read(None)).unwrap();
        assert!(markdown.contains("| plimsoll | 200.0 | 200.0 | 200.0 | 0.0% | 1 |"), "{markdown}");
        assert!(markdown.contains("Ratio of the medians: **4.00**"), "{markdown}");
        assert!(markdown.contains("`command`") && markdown.contains("before: 0.1; after: 0.2"), "{markdown}");
    }

    #[test]
    fn a_side_that_was_not_measured_is_an_error() {
        assert!(comparison(&[(Side::Ours, 0.5)]).markdown(&Machine::read(None)).is_err());
    }

    #[test]
    fn the_table_of_numbers_keeps_the_order_of_the_runs() {
        let csv = comparison(&[(Side::Peer, 2.0), (Side::Ours, 0.5)]).csv();
        let want = "round,side,tokens,seconds,tokens_per_second\n\
            1,candle-transformers quantized_llama,100,2.000000,50.000\n2,plimsoll,100,0.500000,200.000\n";
        assert_eq!(csv, want);
    }
}
