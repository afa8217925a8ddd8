//! What can go wrong between a hub and the cache.

use super::choose::ChooseFault;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a model by `hf:` name is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubFault {
    #[error(transparent)]
    Choice(#[from] ChooseFault),
    #[error("the hub has no such repository or revision (HTTP status {status})")]
    NotFound { status: u16 },
    #[error("the hub refuses access (HTTP status {status}){}", if *with_token { " to this token" } else { ": no token was given" })]
    Refused { status: u16, with_token: bool },
    #[error("{what}: HTTP status {status}")]
    Status { what: String, status: u16 },
    #[error("{what}: {message}")]
    Unreachable { what: String, message: String },
    #[error("{what}: the answer makes no sense: {message}")]
    Answer { what: String, message: String },
    #[error("{file} broke off after {done_bytes} of {total_bytes} bytes: {message}")]
    Cut { file: String, done_bytes: u64, total_bytes: u64, message: String },
    #[error("{file} is {found_bytes} bytes long, the hub says {expected_bytes}")]
    Length { file: String, found_bytes: u64, expected_bytes: u64 },
    #[error("{file} has SHA-256 {found}, the hub says {expected}")]
    WrongSum { file: String, found: String, expected: String },
    #[error("HF_HUB_OFFLINE is set, and it is not whole in the cache {}", cache.display())]
    Offline { cache: PathBuf },
    #[error("could not {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

impl HubFault {
    /// Turns an error of the file system into a fault.
    pub(super) fn io<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Self + 'a {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }

    /// Whether the hub could not be asked at all, so that the cache may be asked instead.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Status { status: 500.., .. })
    }

    /// Whether another name would help.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Choice(_) | Self::NotFound { .. })
    }

    /// What the reader can do about it.
    pub(crate) fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Refused { with_token: false, .. } => "set HF_TOKEN, or put a token into the file HF_HOME/token",
            Self::Refused { with_token: true, .. } => "ask for access on the model's page, or set another HF_TOKEN",
            Self::Offline { .. } => "unset HF_HUB_OFFLINE, or get the file elsewhere and pass it: -m FILE",
            Self::Unreachable { .. } | Self::Cut { .. } => "the same command goes on where this one stopped",
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space, or name another folder: HF_HUB_CACHE"
            }
            Self::Io { .. } => "name another folder: HF_HUB_CACHE",
            _ => return Vec::new(),
        };
        vec![hint.to_owned()]
    }
}
