//! Bytes from the hub into the cache.

use super::{
    HubFault, HubName, HubSettings, Patience,
    name::{is_inside, is_word},
};
use crate::fetch::hex;
use hf_hub::{
    Cache, CacheRepo, Repo, RepoType,
    api::{
        RepoInfo,
        sync::{Api, ApiBuilder},
    },
};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use ureq::{Agent, Body, config::RedirectAuthHeaders, http::Response};

/// Most bytes of a repository's listing: far beyond any, and small enough for any machine.
const MAX_LISTING_BYTES: u64 = 64 << 20;

/// Most redirects before the hub itself answers for a file.
const MAX_REDIRECTS: u32 = 5;

/// How often another process's lock on a file is looked at.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// What a repository holds at a revision.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    /// Paths that stay inside the repository; others are left out.
    pub(super) files: Vec<String>,
}

/// A file as the hub describes it.
#[derive(Debug)]
struct Described {
    /// Name of its content; a SHA-256 for large files.
    etag: String,
    bytes: u64,
}

/// One repository of a hub.
pub(super) struct Client<'a> {
    api: Api,
    repo: Repo,
    /// Follows redirects.
    agent: Agent,
    /// Shows them.
    still: Agent,
    token: Option<&'a str>,
    patience: Patience,
    quiet: bool,
}

impl<'a> Client<'a> {
    pub(super) fn new(settings: &'a HubSettings, name: &HubName, quiet: bool) -> Result<Self, HubFault> {
        let mut builder = ApiBuilder::from_cache(Cache::new(settings.cache.clone()))
            .with_progress(false)
            .with_token(settings.token.clone());
        if let Some(endpoint) = &settings.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let api = builder
            .build()
            .map_err(|error| HubFault::Unreachable { what: "the client".to_owned(), message: error.to_string() })?;
        let patience = settings.patience;
        let agent = |redirects| {
            Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(redirects)
                .redirect_auth_headers(RedirectAuthHeaders::SameHost)
                .timeout_connect(Some(patience.connect))
                .timeout_recv_response(Some(patience.silence))
                .timeout_per_read(Some(patience.silence))
                .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
                .build()
                .new_agent()
        };
        Ok(Self {
            api,
            repo: Repo::with_revision(name.repo.clone(), RepoType::Model, name.revision.clone()),
            agent: agent(10),
            still: agent(0),
            token: settings.token.as_deref(),
            patience,
            quiet,
        })
    }

    /// What the repository holds at its revision.
    pub(super) fn list(&self) -> Result<Listing, HubFault> {
        let what = || format!("the list of {}'s files", self.repo.url());
        let answer = |message: String| HubFault::Answer { what: what(), message };
        let mut response = self.patiently(&what(), || {
            let request = self.api.repo(self.repo.clone()).info_request().config();
            let request = request
                .http_status_as_error(false)
                .timeout_connect(Some(self.patience.connect))
                .timeout_recv_response(Some(self.patience.silence))
                .timeout_per_read(Some(self.patience.silence));
            request.build().call()
        })?;
        self.check_status(&what(), &response)?;
        let text = response.body_mut().with_config().limit(MAX_LISTING_BYTES).read_to_vec();
        let text = text.map_err(|error| HubFault::Unreachable { what: what(), message: error.to_string() })?;
        let info: RepoInfo = serde_json::from_slice(&text).map_err(|error| answer(error.to_string()))?;
        if !is_word(&info.sha) {
            return Err(answer("no commit".to_owned()));
        }
        let files = info.siblings.into_iter().map(|file| file.rfilename).filter(|file| is_inside(file));
        Ok(Listing { commit: info.sha, files: files.collect() })
    }

    /// Brings one file of a commit into the cache, unless it is there.
    pub(super) fn fetch(&self, cache: &CacheRepo, commit: &str, file: &str) -> Result<(), HubFault> {
        let pointer = cache.pointer_path(commit).join(file);
        if fs::metadata(&pointer).is_ok_and(|metadata| metadata.is_file()) {
            return Ok(());
        }
        let url = self.url(commit, file);
        let described = self.describe(&url, file)?;
        let blob = cache.blob_path(&described.etag);
        if !is_whole(&blob, &described) {
            self.download(&url, file, &described, &blob)?;
        }
        point(&pointer, &blob, file).map_err(HubFault::io("put a link in place as", &pointer))
    }

    /// Where the hub has a file of a commit.
    fn url(&self, commit: &str, file: &str) -> String {
        let repo = Repo::with_revision(self.repo.url(), RepoType::Model, commit.to_owned());
        let mut url = self.api.repo(repo).url("");
        for byte in file.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => url.push(byte.into()),
                _ => {
                    let _ = write!(url, "%{byte:02X}"); // writing to a String cannot fail
                }
            }
        }
        url
    }

    /// Name and length of a file's content: only the hub itself knows them, not the host that it redirects to.
    fn describe(&self, url: &str, file: &str) -> Result<Described, HubFault> {
        let answer = |message: &str| HubFault::Answer { what: file.to_owned(), message: message.to_owned() };
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.patiently(file, || self.still.head(&url).with_token(self.token).call())?;
            let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
            if response.status().is_redirection() && header("x-linked-etag").is_none() {
                // A repository that was renamed: the path changes, and nothing but the path.
                let path = header("location").filter(|path| path.starts_with('/') && !path.starts_with("//"));
                let host_end = url.find("://").map_or(0, |at| at + 3);
                let path_at = url[host_end..].find('/').map_or(url.len(), |at| host_end + at);
                let path = path.ok_or_else(|| answer("a redirect to another host without x-linked-etag"))?;
                url.replace_range(path_at.., path);
                continue;
            }
            if !response.status().is_redirection() {
                self.check_status(file, &response)?;
            }
            let etag = header("x-linked-etag").or(header("etag")).ok_or_else(|| answer("no etag"))?;
            let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"').to_owned();
            if !is_word(&etag) {
                return Err(answer("an etag that is no file name"));
            }
            let length = header("x-linked-size").or_else(|| match response.status().is_redirection() {
                true => None,
                false => header("content-length"),
            });
            let bytes = length.and_then(|text| text.parse().ok()).ok_or_else(|| answer("no length"))?;
            return Ok(Described { etag, bytes });
        }
        Err(answer("too many redirects"))
    }

    /// Downloads a file to `blob`, going on where an earlier call was cut off.
    fn download(&self, url: &str, file: &str, described: &Described, blob: &Path) -> Result<(), HubFault> {
        let folder = blob.parent().unwrap_or(blob);
        fs::create_dir_all(folder).map_err(HubFault::io("create the cache folder", folder))?;
        let part_path = beside(blob, ".plimsoll-part");
        let io_fault = |doing| HubFault::io(doing, &part_path);
        let lock_path = beside(blob, ".plimsoll-lock");
        let _lock = lock(&lock_path).map_err(HubFault::io("lock", &lock_path))?;
        if is_whole(blob, described) {
            return Ok(()); // by the process that held the lock
        }
        let part = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&part_path);
        let mut part = part.map_err(io_fault("create"))?;
        let bar = self.bar(file, described.bytes);
        self.fill(&mut part, url, file, described, &bar)?;
        let verdict = check(&mut part, file, described).map_err(io_fault("read"))?;
        if let Err(fault) = verdict {
            // The next call begins anew.
            part.set_len(0).map_err(io_fault("cut"))?;
            return Err(fault);
        }
        part.sync_all().map_err(io_fault("write"))?;
        fs::rename(&part_path, blob).map_err(HubFault::io("put the file in place as", blob))?;
        bar.finish_and_clear();
        Ok(())
    }

    /// Adds to `part` what it lacks. Attempts that bring bytes are not counted.
    fn fill(
        &self,
        part: &mut File,
        url: &str,
        file: &str,
        described: &Described,
        bar: &ProgressBar,
    ) -> Result<(), HubFault> {
        let total_bytes = described.bytes;
        let io_fault = |source| HubFault::Io { doing: "write", path: file.into(), source };
        let mut done = part.seek(SeekFrom::End(0)).map_err(io_fault)?;
        let mut buffer = vec![0u8; 1 << 18];
        let mut failures = 0;
        while done != total_bytes {
            if done > total_bytes {
                done = restart(part).map_err(io_fault)?;
            }
            let before = done;
            let mut response = self.patiently(file, || {
                let request = self.agent.get(url).with_token(self.token).header("accept-encoding", "identity");
                request.header("range", format!("bytes={done}-")).call()
            })?;
            let message = match response.status().as_u16() {
                206 if range_start(&response) == Some(done) => None,
                // The whole file instead of the rest of it, or another part than was asked for, or none at all.
                200 => {
                    done = restart(part).map_err(io_fault)?;
                    None
                }
                206 | 416 => {
                    done = restart(part).map_err(io_fault)?;
                    Some(format!("HTTP status {} with another range", response.status().as_u16()))
                }
                _ => {
                    self.check_status(file, &response)?;
                    Some(format!("HTTP status {}", response.status().as_u16()))
                }
            };
            let mut ended = message;
            let mut body = response.body_mut().as_reader();
            while ended.is_none() && done <= total_bytes {
                bar.set_position(done);
                match body.read(&mut buffer) {
                    Ok(0) => ended = Some("the connection was closed".to_owned()),
                    Ok(n) => {
                        part.write_all(&buffer[..n]).map_err(io_fault)?;
                        done += n as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => ended = Some(error.to_string()),
                }
                if done == total_bytes {
                    return Ok(());
                }
            }
            if done > total_bytes {
                let fault = HubFault::Length { file: file.to_owned(), found_bytes: done, expected_bytes: total_bytes };
                restart(part).map_err(io_fault)?;
                return Err(fault);
            }
            failures = if done > before { 0 } else { failures + 1 };
            if failures >= self.patience.attempts {
                let message = ended.unwrap_or_default();
                return Err(HubFault::Cut { file: file.to_owned(), done_bytes: done, total_bytes, message });
            }
            if failures > 0 {
                thread::sleep(self.pause(failures));
            }
        }
        Ok(())
    }

    /// Sends a request until it is answered, and not with "later".
    fn patiently(
        &self,
        what: &str,
        send: impl Fn() -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, HubFault> {
        let mut attempt = 1;
        loop {
            let answer = send();
            let again = match &answer {
                Ok(response) => matches!(response.status().as_u16(), 408 | 429 | 500 | 502..=504),
                Err(ureq::Error::BadUri(_) | ureq::Error::Http(_)) => false,
                Err(_) => true,
            };
            if !again || attempt >= self.patience.attempts {
                return answer
                    .map_err(|error| HubFault::Unreachable { what: what.to_owned(), message: error.to_string() });
            }
            thread::sleep(self.pause(attempt));
            attempt += 1;
        }
    }

    fn pause(&self, failures: u32) -> Duration {
        self.patience.pause.saturating_mul(1 << (failures - 1).min(5))
    }

    fn check_status(&self, what: &str, response: &Response<Body>) -> Result<(), HubFault> {
        let status = response.status().as_u16();
        let code = response.headers().get("x-error-code").and_then(|value| value.to_str().ok());
        match status {
            200..=299 => Ok(()),
            // To those without a token, the hub does not tell what is private from what is not there.
            401 | 403 => Err(HubFault::Refused { status, with_token: self.token.is_some() }),
            404 if code != Some("EntryNotFound") => Err(HubFault::NotFound { status }),
            _ => Err(HubFault::Status { what: what.to_owned(), status }),
        }
    }

    fn bar(&self, file: &str, bytes: u64) -> ProgressBar {
        if self.quiet {
            return ProgressBar::hidden();
        }
        let template = "{msg} {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        // indicatif draws on stderr, and only if that is a terminal.
        ProgressBar::new(bytes).with_style(style).with_message(format!("fetching {file}"))
    }
}

/// Requests that say who asks.
trait WithToken {
    fn with_token(self, token: Option<&str>) -> Self;
}

impl<B> WithToken for ureq::RequestBuilder<B> {
    fn with_token(self, token: Option<&str>) -> Self {
        match token {
            Some(token) => self.header("authorization", format!("Bearer {token}")),
            None => self,
        }
    }
}

/// The path with more at the end of its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

fn restart(part: &mut File) -> io::Result<u64> {
    part.set_len(0)?;
    part.seek(SeekFrom::Start(0))
}

/// Where the bytes of a partial answer start.
fn range_start(response: &Response<Body>) -> Option<u64> {
    let range = response.headers().get("content-range")?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

fn is_whole(blob: &Path, described: &Described) -> bool {
    // The sum was checked before it was put here; the length tells a file that was cut since.
    fs::metadata(blob).is_ok_and(|metadata| metadata.is_file() && metadata.len() == described.bytes)
}

/// Holds back other processes that fetch the same file. The lock goes with the value; the empty file stays.
fn lock(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_POLL),
            // File systems without locks: two processes at once may then disturb each other, and the sum tells.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Whether the file is what the hub described: its length, and its SHA-256 where its name is one.
fn check(part: &mut File, file: &str, described: &Described) -> io::Result<Result<(), HubFault>> {
    let found_bytes = part.metadata()?.len();
    if found_bytes != described.bytes {
        let expected_bytes = described.bytes;
        return Ok(Err(HubFault::Length { file: file.to_owned(), found_bytes, expected_bytes }));
    }
    let is_sum = described.etag.len() == 64 && described.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_sum {
        return Ok(Ok(()));
    }
    part.seek(SeekFrom::Start(0))?;
    let mut hash = Sha256::new();
    io::copy(part, &mut hash)?;
    let (found, expected) = (hex(&hash.finalize()), described.etag.to_ascii_lowercase());
    Ok(match found == expected {
        true => Ok(()),
        false => Err(HubFault::WrongSum { file: file.to_owned(), found, expected }),
    })
}

/// Makes `pointer`, a file of a snapshot, stand for `blob`. Whatever stood there is replaced in one step: others may be reading it.
fn point(pointer: &Path, blob: &Path, file: &str) -> io::Result<()> {
    let folder = pointer.parent().unwrap_or(pointer);
    fs::create_dir_all(folder)?;
    let up = "../".repeat(2 + file.matches('/').count());
    let target = Path::new(&up).join("blobs").join(blob.file_name().unwrap_or_default());
    let link = tempfile::Builder::new().prefix(".link-").make_in(folder, |path| {
        #[cfg(unix)]
        return std::os::unix::fs::symlink(&target, path);
        // Links need a right that few users have there.
        #[cfg(not(unix))]
        return fs::hard_link(blob, path).or_else(|_| fs::copy(blob, path).map(|_| drop(&target)));
    })?;
    link.into_temp_path().persist(pointer).map_err(|error| error.error)
}
