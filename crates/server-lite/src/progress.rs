//! Progress on standard error, when it is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_prefill::Progress;

/// A bar over the prompt's tokens; indicatif shows it only on a terminal.
#[derive(Debug)]
pub(crate) struct Prefill {
    bar: ProgressBar,
}

impl Prefill {
    /// A bar over `total_tokens`, the first `cached_tokens` of which are there already; none where it is not `wanted`.
    pub(crate) fn new(cached_tokens: usize, total_tokens: usize, wanted: bool) -> Self {
        if !wanted {
            return Self { bar: ProgressBar::hidden() };
        }
        let style = ProgressStyle::with_template("prefill {bar:30} {pos}/{len} tokens{msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total_tokens as u64).with_style(style);
        bar.set_position(cached_tokens as u64);
        Self { bar }
    }

    /// After a chunk.
    pub(crate) fn show(&self, progress: &Progress<'_>) {
        if self.bar.is_hidden() {
            return;
        }
        self.bar.set_position((progress.cached_tokens + progress.done_tokens) as u64);
        self.bar.set_message(format!(", {}", message(progress)));
    }

    /// Runs `print` with the bar out of the way.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Cached tokens, memory, speed, time left.
fn message(progress: &Progress<'_>) -> String {
    let mut parts = Vec::new();
    if progress.cached_tokens > 0 {
        parts.push(format!("{} cached", progress.cached_tokens));
    }
    let bytes = progress.footprint_bytes().unwrap_or(progress.reserved_bytes);
    parts.push(format!("{:.0} MiB", bytes as f64 / 1_048_576.0));
    if let Some(speed) = progress.tokens_per_second() {
        parts.push(format!("{speed:.1} tokens/s"));
    }
    parts.push(format!("{:.0} s left", progress.seconds_left()));
    parts.join(", ")
}
