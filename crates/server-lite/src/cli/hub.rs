//! What `hf:` names take from the environment.

use crate::{
    error::AppError,
    hub::{HubSettings, Patience},
};
use std::{
    env,
    ffi::OsString,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// Most bytes of a token's file.
const MAX_TOKEN_BYTES: u64 = 1 << 14;

/// Settings for `hf:` names, from the variables that the hub's own tools read: `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, `HF_TOKEN_PATH`
/// and `HF_HUB_OFFLINE`.
///
/// # Errors
/// [`AppError::Usage`] if a value cannot be used, [`AppError::File`] if the token's file cannot be read.
pub(crate) fn hub_settings() -> Result<HubSettings, AppError> {
    let given = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let text = |name: &str| match given(name).map(OsString::into_string) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text.trim().to_owned())),
        Some(Err(_)) => Err(AppError::Usage(format!("{name} is not UTF-8 text"))),
    };
    let home = match (given("HF_HOME"), given("XDG_CACHE_HOME")) {
        (Some(home), _) => Some(PathBuf::from(home)),
        (None, Some(caches)) => Some(Path::new(&caches).join("huggingface")),
        (None, None) => dirs::home_dir().map(|home| home.join(".cache/huggingface")),
    };
    let no_home = || AppError::Usage("this user has no home folder: set HF_HOME".to_owned());
    let cache = match given("HF_HUB_CACHE").or_else(|| given("HUGGINGFACE_HUB_CACHE")) {
        Some(cache) => cache.into(),
        None => home.as_ref().ok_or_else(no_home)?.join("hub"),
    };
    let token = match text("HF_TOKEN")? {
        Some(token) => Some(token),
        None => match (given("HF_TOKEN_PATH"), &home) {
            (Some(path), _) => token_of(Path::new(&path))?,
            (None, Some(home)) => token_of(&home.join("token"))?,
            (None, None) => None,
        },
    };
    if token.as_deref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(AppError::Usage("the hub's token holds characters that no token has".to_owned()));
    }
    let endpoint = text("HF_ENDPOINT")?.map(|endpoint| endpoint.trim_end_matches('/').to_owned());
    if let Some(endpoint) = endpoint.as_deref()
        && !["http://", "https://"]
            .iter()
            .any(|scheme| endpoint.strip_prefix(scheme).is_some_and(|host| !host.is_empty()))
    {
        return Err(AppError::Usage(format!("HF_ENDPOINT is \"{endpoint}\", no http:// or https:// address")));
    }
    let offline = text("HF_HUB_OFFLINE")?
        .is_some_and(|value| ["1", "true", "yes", "on"].iter().any(|yes| value.eq_ignore_ascii_case(yes)));
    Ok(HubSettings {
        endpoint,
        token: token.filter(|token| !token.is_empty()),
        cache,
        offline,
        patience: Patience::default(),
    })
}

/// The token in a file; `None` if there is no such file.
fn token_of(path: &Path) -> Result<Option<String>, AppError> {
    let fault = |source| AppError::File { doing: "read the hub's token in", path: path.to_owned(), source };
    // A pipe would be waited on for ever.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(AppError::Usage(format!("the hub's token in {} is no regular file", path.display())));
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fault(error)),
    };
    let mut text = String::new();
    file.take(MAX_TOKEN_BYTES).read_to_string(&mut text).map_err(fault)?;
    Ok(Some(text.trim().to_owned()))
}
