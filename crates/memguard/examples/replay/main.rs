//! Prints what the reclaim charge changes: `cargo run -p plimsoll-memguard --example replay`.
#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

mod simulation;

use plimsoll_memguard::ByteSize;
use simulation::{CAP_BYTES, Outcome, PROMPT_TOKENS, Rule};

fn main() {
    let (before, after) = (simulation::run(Rule::GrowthOnly), simulation::run(Rule::ReclaimCharge));
    println!("{PROMPT_TOKENS} tokens, cap {}, simulated pool", ByteSize::new(CAP_BYTES));
    println!("{:<28} {:>16} {:>16}", "", "without charge", "with charge");
    let row = |name: &str, value: fn(&Outcome) -> String| {
        println!("{name:<28} {:>16} {:>16}", value(&before), value(&after));
    };
    row("tokens prefilled", |outcome| outcome.tokens.to_string());
    row("outcome", |outcome| if outcome.tokens == PROMPT_TOKENS { "complete" } else { "aborted" }.to_owned());
    row("chunks", |outcome| outcome.chunks.to_string());
    row("chunks cut", |outcome| outcome.reductions.to_string());
    row("releases", |outcome| outcome.releases.to_string());
    row("refused polls", |outcome| outcome.refusals.to_string());
    row("hard-pressure transitions", |outcome| outcome.hard_transitions.to_string());
    row("peak", |outcome| ByteSize::new(outcome.peak_bytes).to_string());
    row("worst overrun of prediction", |outcome| ByteSize::new(outcome.worst_overrun_bytes).to_string());
    println!();
    println!("{:<28} {:>16} {:>16} {:>16}", "one chunk, GiB", "without charge", "with charge", "observed");
    for case in simulation::cases() {
        let gib = |hundredths: u64| format!("{}.{:02}", hundredths / 100, hundredths % 100);
        let (without, with) = (gib(case.without_charge), gib(case.with_charge));
        println!("{:<28} {without:>16} {with:>16} {:>16}", case.name, gib(case.observed));
    }
}
