//! Progress on standard error, when it is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over the prompt's tokens; indicatif shows it only on a terminal.
pub(crate) fn prefill(prompt_tokens: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("prefill {bar:30} {pos}/{len} tokens, {per_sec}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(prompt_tokens as u64).with_style(style)
}
