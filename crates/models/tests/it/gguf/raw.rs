//! Files built byte by byte, so that they can be wrong in one place.

/// A GGUF file of parts that nobody checks.
#[derive(Clone)]
pub(super) struct Raw {
    pub(super) magic: [u8; 4],
    pub(super) version: [u8; 4],
    /// Instead of the true counts.
    pub(super) tensor_count: Option<u64>,
    pub(super) entry_count: Option<u64>,
    pub(super) entries: Vec<Vec<u8>>,
    pub(super) tensors: Vec<Vec<u8>>,
    pub(super) data: Vec<u8>,
}

impl Raw {
    pub(super) fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3_u32.to_le_bytes(),
            tensor_count: None,
            entry_count: None,
            entries: Vec::new(),
            tensors: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Adds an entry; `value`: the bytes after the type.
    pub(super) fn entry(mut self, key: impl AsRef<[u8]>, type_id: u32, value: impl AsRef<[u8]>) -> Self {
        self.entries.push([&string(key), &type_id.to_le_bytes()[..], value.as_ref()].concat());
        self
    }

    /// Adds a tensor; `dims`: innermost first, `offset`: from the start of the data.
    pub(super) fn tensor(mut self, name: impl AsRef<[u8]>, dims: &[u64], type_id: u32, offset: u64) -> Self {
        let mut tensor = string(name);
        tensor.extend(u32::try_from(dims.len()).unwrap().to_le_bytes());
        dims.iter().for_each(|dim| tensor.extend(dim.to_le_bytes()));
        tensor.extend(type_id.to_le_bytes());
        tensor.extend(offset.to_le_bytes());
        self.tensors.push(tensor);
        self
    }

    /// Adds bytes of tensor data.
    pub(super) fn data(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.data.extend(bytes.as_ref());
        self
    }

    /// The header, without padding and data.
    pub(super) fn header(&self) -> Vec<u8> {
        let tensor_count = self.tensor_count.unwrap_or(self.tensors.len() as u64);
        let entry_count = self.entry_count.unwrap_or(self.entries.len() as u64);
        let mut bytes = [self.magic, self.version].concat();
        bytes.extend(tensor_count.to_le_bytes());
        bytes.extend(entry_count.to_le_bytes());
        bytes.extend(self.entries.concat());
        bytes.extend(self.tensors.concat());
        bytes
    }

    /// The file, padded to 32 bytes before the data if there is data.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header();
        if !self.data.is_empty() {
            bytes.resize(bytes.len().next_multiple_of(32), 0);
            bytes.extend(&self.data);
        }
        bytes
    }
}

/// A string as the format stores it.
pub(super) fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// An array as the format stores it, with a count that may lie.
pub(super) fn array(type_id: u32, count: u64, elements: impl AsRef<[u8]>) -> Vec<u8> {
    [&type_id.to_le_bytes()[..], &count.to_le_bytes()[..], elements.as_ref()].concat()
}
