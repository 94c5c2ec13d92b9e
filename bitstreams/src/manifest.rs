//! Manifests: the properties of a bitstream that its card cannot tell.
//!
//! A manifest is a small TOML file beside the bitstream. It names the register map of its shell and the
//! engine of its vFPGAs, for balboad, and has [`Details`] for people and tools.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use fpga_regs::coyote::shell::Map;
use fpga_regs::coyote::vfpga::MAX_VFPGAS;
use serde::Deserialize;

use crate::details::{Details, Mends, RawClocks, RawFile, RawSource};
use crate::part::{self, Part};
use crate::soft::{Logic, SoftImage};

/// The version of the manifest's format.
const FORMAT: u32 = 1;
/// Bytes of the largest manifest that is read.
const MAX_BYTES: u64 = 64 << 10;
/// Bytes of the longest name.
const MAX_NAME: usize = 128;

/// The facts about a bitstream that balboad needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Its name, for people.
    pub name: String,
    /// The register map of its shell.
    pub map: Map,
    /// The engine that drives the logic in its vFPGAs.
    pub engine: EngineKind,
    /// vFPGAs it has; `None` where the manifest does not say.
    pub regions: Option<u8>,
    /// The logic in each of them, where the manifest names it: else the logic that `engine` drives stands in all.
    pub logic: Vec<Logic>,
    /// The value of the shell's register PROBE, where the manifest has it.
    pub probe: Option<u32>,
    /// The part of its board, where the manifest says it.
    pub part: Option<&'static Part>,
    /// The faults of the published shell that it names as mended.
    pub mends: Mends,
}

/// All that a manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The facts that balboad needs.
    pub manifest: Manifest,
    /// The rest.
    pub details: Details,
}

/// The engine that drives the logic in a card's vFPGAs, and makes verbs of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// A verbs queue engine in the vFPGA, with its window of registers.
    #[default]
    Vqe,
    /// The command registers of the published shell, by which the host posts each message.
    Stock,
}

impl From<EngineKind> for Logic {
    fn from(engine: EngineKind) -> Self {
        match engine {
            EngineKind::Vqe => Self::Vqe,
            EngineKind::Stock => Self::Stock,
        }
    }
}

impl From<Logic> for EngineKind {
    fn from(logic: Logic) -> Self {
        match logic {
            // Logic other than the published one stands over the queue engine's stack.
            Logic::Vqe | Logic::Other(_) => Self::Vqe,
            Logic::Stock => Self::Stock,
        }
    }
}

/// Why there is no manifest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read.
    #[error("manifest {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is no manifest.
    #[error("manifest {}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The fault, and the expected value.
        why: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    format: u32,
    name: String,
    shell_map: MapName,
    #[serde(default)]
    engine: EngineKind,
    regions: Option<u8>,
    #[serde(default)]
    logic: Vec<String>,
    board: Option<String>,
    part: Option<String>,
    idcode: Option<u32>,
    shell_probe: Option<u32>,
    #[serde(default)]
    services: Vec<String>,
    clocks: Option<RawClocks>,
    #[serde(default)]
    files: Vec<RawFile>,
    source: Option<RawSource>,
    #[serde(default)]
    verified: bool,
}

/// The name of a register map, in manifests and on command lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct MapName(pub Map);

impl FromStr for MapName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "before-2026" => Ok(Self(Map::Before2026)),
            "since-2026" => Ok(Self(Map::Since2026)),
            _ => Err(format!("`{text}` is no register map; write before-2026 or since-2026")),
        }
    }
}

impl TryFrom<String> for MapName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::fmt::Display for MapName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Map::Before2026 => "before-2026",
            Map::Since2026 => "since-2026",
        })
    }
}

impl Manifest {
    /// Reads a manifest from a file.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Malformed`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let read = |error| Error::Read { path: path.to_owned(), error };
        let malformed = |why| Error::Malformed { path: path.to_owned(), why };
        let mut text = String::new();
        // Opening anything but a file may take for ever.
        if !std::fs::metadata(path).map_err(read)?.is_file() {
            return Err(malformed("it is no regular file".into()));
        }
        let file = std::fs::File::open(path).map_err(read)?;
        let bytes = std::io::Read::take(file, MAX_BYTES.saturating_add(1));
        std::io::Read::read_to_string(&mut { bytes }, &mut text).map_err(read)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(malformed(format!("it has more than {MAX_BYTES} bytes")));
        }
        Self::parse(&text).map_err(malformed)
    }

    /// Parses the text of a manifest.
    ///
    /// # Errors
    /// The fault, and the expected value.
    pub fn parse(text: &str) -> Result<Self, String> {
        Entry::parse(text).map(|entry| entry.manifest)
    }

    /// The logic in each of its vFPGAs, where the manifest has their number.
    #[must_use]
    pub fn stands(&self) -> Vec<Logic> {
        match self.logic.as_slice() {
            [] => vec![self.engine.into(); self.regions.unwrap_or_default().into()],
            logic => logic.to_vec(),
        }
    }
}

impl Entry {
    /// Parses the text of a manifest.
    ///
    /// # Errors
    /// The fault, and the expected value.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| sentence_of(text, &error))?;
        let File { format, name, shell_map, engine, .. } = file;
        if format != FORMAT {
            return Err(format!("its format is {format}, and only {FORMAT} is known here"));
        }
        if name.chars().any(char::is_control) || name.len() > MAX_NAME {
            return Err(format!("its name is to be one line of at most {MAX_NAME} bytes"));
        }
        let logic = logic_of(&file.logic, engine, file.regions)?;
        let said = u8::try_from(logic.len()).ok().filter(|count| *count > 0);
        let regions = file.regions.or(said);
        if let Some(regions) = regions.filter(|n| *n == 0 || u64::from(*n) > MAX_VFPGAS) {
            return Err(format!("regions = {regions}: a shell has 1 to {MAX_VFPGAS} vFPGAs"));
        }
        let mut details = Details::of(file.board.as_deref(), file.part.as_deref(), file.idcode)?;
        details.shell_probe = file.shell_probe;
        details.set_services(&file.services)?;
        details.set_clocks(file.clocks)?;
        details.set_files(file.files, regions)?;
        details.set_source(file.source)?;
        details.set_verified(file.verified)?;
        let part = details.part.as_deref().and_then(part::of_number);
        let (map, probe) = (shell_map.0, details.shell_probe);
        let mends = details.source.as_ref().map(|source| source.mends).unwrap_or_default();
        let manifest = Manifest { name, map, engine, regions, logic, probe, part, mends };
        Ok(Self { manifest, details })
    }
}

/// The logic that a manifest names, vFPGA by vFPGA, some of which its engine drives.
fn logic_of(
    names: &[String],
    engine: EngineKind,
    regions: Option<u8>,
) -> Result<Vec<Logic>, String> {
    let logic: Vec<Logic> = names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    if logic.is_empty() {
        return Ok(logic);
    }
    if regions.is_some_and(|regions| usize::from(regions) != logic.len()) {
        return Err(format!(
            "logic names {} vFPGAs, and regions is another number; write as many",
            logic.len()
        ));
    }
    SoftImage::new(logic.clone()).map_err(|why| format!("logic: {why}"))?;
    match logic.contains(&engine.into()) {
        true => Ok(logic),
        false => Err(format!(
            "logic names no {}, which balboad drives by engine; name it where it stands",
            Logic::from(engine)
        )),
    }
}

/// The fault of a text and its line, in one line.
#[must_use]
pub fn sentence_of(text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start);
    let line = text.bytes().take(start).filter(|byte| *byte == b'\n').count().saturating_add(1);
    let message: Vec<&str> = error.message().split_whitespace().collect();
    format!("line {line}: {}", message.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_says_which_map_a_bitstream_has_and_what_drives_it() {
        let text = "format = 1\nname = \"x\"\nshell-map = \"before-2026\"\nregions = 4\n";
        let (name, map, engine) = ("x".into(), Map::Before2026, EngineKind::Vqe);
        let wanted = Manifest { name, map, engine, regions: Some(4), ..Manifest::default() };
        assert_eq!(Manifest::parse(text), Ok(wanted));
        let text = "format = 1\nname = \"x\"\nshell-map = \"since-2026\"";
        assert_eq!(Manifest::parse(text).unwrap().regions, None);
        for (name, engine) in [("vqe", EngineKind::Vqe), ("stock", EngineKind::Stock)] {
            let text = format!("{text}\nengine = \"{name}\"");
            assert_eq!(Manifest::parse(&text).unwrap().engine, engine);
        }
    }

    #[test]
    fn a_manifest_names_the_logic_of_each_vfpga() {
        let text = "format = 1\nname = \"x\"\nshell-map = \"since-2026\"\n";
        let with = |more: &str| Manifest::parse(&format!("{text}{more}"));
        let manifest = with("logic = [\"vqe\", \"echo\"]").unwrap();
        assert_eq!(manifest.logic, ["vqe", "echo"].map(|name| name.parse().unwrap()));
        assert_eq!(manifest.regions, Some(2));
        assert_eq!(with("logic = [\"vqe\", \"echo\"]\nregions = 2"), Ok(manifest));
        assert_eq!(with("regions = 2").unwrap().logic, []);
        assert_eq!(with("regions = 2").unwrap().stands(), [Logic::Vqe; 2]);
        for (more, sentence) in [
            ("logic = [\"vqe\"]\nregions = 2", "logic names 1 vFPGAs"),
            ("logic = [\"echo\"]", "logic names no vqe"),
            ("logic = [\"stock\", \"echo\"]\nengine = \"stock\"", "different networks"),
            ("logic = [\"Echo\"]", "small letters"),
        ] {
            let why = with(more).unwrap_err();
            assert!(why.contains(sentence), "{more}: {why}");
        }
    }

    #[test]
    fn what_is_no_manifest_is_refused_by_name() {
        for (text, sentence) in [
            ("format = 1\nname = \"x\"", "shell-map"),
            ("format = 1\nname = \"x\"\nshell-map = \"new\"", "write before-2026 or since-2026"),
            (
                "format = 1\nname = \"x\"\nshell-map = \"since-2026\"\nengine = \"tcp\"",
                "expected `vqe` or `stock`",
            ),
            ("format = 2\nname = \"x\"\nshell-map = \"since-2026\"", "format is 2"),
            ("format = 1\nname = \"x\"\nshell-map = \"since-2026\"\nregions = 16", "1 to 15"),
            ("format = 1\nname = \"x\"\nshell-map = \"since-2026\"\nmap = 3", "unknown field"),
            ("format = 1\nname = \"a\\nb\"\nshell-map = \"since-2026\"", "one line"),
            ("format = 1\nname =\nshell-map = \"since-2026\"", "line 2: "),
            ("\u{0}", "line 1"),
        ] {
            let why = Manifest::parse(text).unwrap_err();
            assert!(why.contains(sentence), "{text:?}: {why}");
            assert_eq!(why.lines().count(), 1, "{why}");
        }
        let missing = Manifest::read(Path::new("/nonexistent/manifest.toml")).unwrap_err();
        assert!(missing.to_string().starts_with("manifest /nonexistent/manifest.toml: "));
        for other in ["/", "/dev/zero"] {
            let refused = Manifest::read(Path::new(other)).unwrap_err().to_string();
            assert!(refused.ends_with("it is no regular file"), "{refused}");
        }
    }

    #[test]
    fn a_maps_name_reads_as_it_is_written() {
        for map in [Map::Before2026, Map::Since2026] {
            assert_eq!(MapName(map).to_string().parse(), Ok(MapName(map)));
        }
    }
}
