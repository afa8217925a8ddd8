//! Ctrl-C while the process waits for something that cannot be woken, such as a pipe that nobody writes to.

use crate::error::AppError;
use plimsoll_prefill::CancelToken;
use std::{
    panic,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// Stack of the thread that works: as large as that of a main thread.
const STACK_BYTES: usize = 8 << 20;

/// How long Ctrl-C may wait to be noticed.
pub(crate) const POLL: Duration = Duration::from_millis(25);

/// The value of `work`, which runs in a thread of its own, so that Ctrl-C ends the wait for it. `doing` completes "cancelled while ...".
///
/// The thread of a cancelled wait is left behind: what was begun must be safe to leave at any point, as the process ends then.
///
/// # Errors
/// [`AppError::Interrupted`], [`AppError::Thread`].
pub(crate) fn interruptible<T: Send + 'static>(
    cancel: &CancelToken,
    doing: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, AppError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let send = move || {
        // Nobody waits any more after Ctrl-C.
        let _ = sender.send(work());
    };
    let worker = thread::Builder::new().name("plimsoll-wait".to_owned()).stack_size(STACK_BYTES);
    let worker = worker.spawn(send).map_err(AppError::Thread)?;
    loop {
        match receiver.recv_timeout(POLL) {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                return Err(AppError::Interrupted { doing: doing.into() });
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match worker.join() {
                Err(cause) => panic::resume_unwind(cause),
                Ok(()) => unreachable!("the worker sends before it ends"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_ends_gives_its_value() {
        assert_eq!(interruptible(&CancelToken::new(), "counting", || 6 * 7).unwrap(), 42);
    }

    #[test]
    fn work_that_does_not_end_is_left_when_cancelled() {
        let cancel = CancelToken::new();
        let (_held, never) = mpsc::channel::<()>();
        let token = cancel.clone();
        let canceller = thread::spawn(move || token.cancel());
        let error = interruptible(&cancel, "waiting", move || never.recv()).unwrap_err();
        assert_eq!(error.to_string(), "cancelled while waiting");
        canceller.join().unwrap();
    }

    #[test]
    #[should_panic(expected = "a fault of the work")]
    fn a_panic_of_the_work_is_passed_on() {
        let _ = interruptible(&CancelToken::new(), "failing", || panic!("a fault of the work"));
    }
}
