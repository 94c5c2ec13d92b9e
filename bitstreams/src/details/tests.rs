use super::*;
use crate::Entry;
use crate::soft::{Logic, SoftImage};

const HEAD: &str = "format = 1\nname = \"x\"\nshell-map = \"since-2026\"\nregions = 2\n";
const BOARD: &str = "board = \"u250\"\npart = \"xcu250-figd2104-2L-e\"\nidcode = 0x14b57093\n";

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn entry(text: &str) -> Result<Entry, String> {
    Entry::parse(&format!("{HEAD}{text}"))
}

#[test]
fn a_manifest_says_all_that_is_known_of_a_bitstream() {
    let digest = Sha256::of(b"x");
    let text = format!(
        "{BOARD}shell-probe = 0xff1ce\nservices = [\"rdma\", \"tcp\"]\nverified = true\n\
         clocks = {{ shell = 250, user = 300 }}\n\
         source = {{ url = \"https://example.org/x\", build = \"make\", commit = \"{COMMIT}\", \
         mended = [\"selection\"] }}\n\
         [[files]]\nname = \"a.bin\"\nkind = \"vfpga\"\nregion = 1\nlength = 1\n\
         sha256 = \"{digest}\"\nsignature = \"a.bin.minisig\"\n"
    );
    let details = entry(&text).unwrap().details;
    let file = ImageFile {
        name: "a.bin".into(),
        kind: FileKind::Vfpga,
        region: Some(1),
        length: Some(1),
        sha256: Some(digest),
        signature: Some("a.bin.minisig".into()),
    };
    let wanted = Details {
        board: Some("u250".into()),
        part: Some("xcu250-figd2104-2L-e".into()),
        idcode: Some(0x14b5_7093),
        shell_probe: Some(0xff1ce),
        services: vec!["rdma".into(), "tcp".into()],
        clocks: Clocks { shell: Some(250), network: None, user: Some(300) },
        files: vec![file],
        source: Some(Source {
            url: "https://example.org/x".into(),
            build: Some("make".into()),
            commit: Some(COMMIT.into()),
            mends: Mends { windows: false, selection: true },
        }),
        verified: true,
    };
    assert_eq!(details, wanted);
}

#[test]
fn what_is_wrong_is_told_by_field_value_and_mend() {
    let source = |rest: &str| format!("source = {{ url = \"https://x\", {rest} }}");
    let file = |rest: &str| format!("{BOARD}[[files]]\n{rest}\n");
    for (text, words) in [
        ("board = \"u51\"".to_owned(), ["board = \"u51\"", "u50, u55c"]),
        ("part = \"xcu51-x\"".into(), ["part = \"xcu51-x\"", "u55c"]),
        (
            "board = \"u280\"\npart = \"xcu250-x\"".into(),
            ["is the u250's", "write board = \"u250\""],
        ),
        ("part = \"xcu250-x\"".into(), ["is the u250's", "write board = \"u250\""]),
        ("idcode = 1".into(), ["idcode = 0x00000001", "write the part"]),
        (BOARD.replace("0x14b5", "0x14b7"), ["idcode = 0x14b77093", "xcu250 is 0x04b57093"]),
        ("idcode = \"x\"".into(), ["line 5", "expected u32"]),
        ("services = [\"nvme\"]".into(), ["there is no \"nvme\"", "rdma"]),
        ("services = [\"tcp\", \"tcp\"]".into(), ["\"tcp\" is there twice", "once"]),
        ("clocks = { user = 0 }".into(), ["clocks.user = 0", "1 to 1000"]),
        ("clocks = { core = 1 }".into(), ["unknown field", "core"]),
        ("source = { url = \"ftp://x\" }".into(), ["source.url = \"ftp://x\"", "https://"]),
        (
            "source = { url = \"https://x\", build = \"a\\nb\" }".into(),
            ["source.build", "one line"],
        ),
        (source("commit = \"12ab\""), ["source.commit = \"12ab\"", "40 hexadecimal"]),
        (source(&format!("commit = \"{}\"", COMMIT.to_uppercase())), ["commit", "40 hexa"]),
        (source("mended = [\"windows\"]"), ["source.mended", "write the commit"]),
        (
            source(&format!("commit = \"{COMMIT}\", mended = [\"window\"]")),
            ["no \"window\"", "write windows, selection"],
        ),
        (
            source(&format!("commit = \"{}\", mended = [\"windows\"]", FAULTY_WINDOWS[0])),
            ["source.mended", "leave windows out"],
        ),
        ("verified = true".into(), ["verified = true", "sha256 of every file"]),
        (file("name = \"../a\"\nkind = \"full\""), ["files.name = \"../a\"", "folder"]),
        (file("name = \"a\"\nkind = \"full\"\nsignature = \"/a\""), ["files.signature", "folder"]),
        (
            file("name = \"a\"\nkind = \"full\"\n[[files]]\nname = \"a\"\nkind = \"shell\""),
            ["\"a\" is there twice", "once"],
        ),
        (file("name = \"a\"\nkind = \"vfpga\""), ["a is for a vFPGA", "write region"]),
        (file("name = \"a\"\nkind = \"vfpga\"\nregion = 2"), ["region = 2", "regions = 2"]),
        (file("name = \"a\"\nkind = \"full\"\nregion = 0"), ["region = 0", "leave it out"]),
        (file("name = \"a\"\nkind = \"soft\""), ["kind soft", "board = \"soft\""]),
        (file("name = \"a\"\nkind = \"full\"\nlength = 0"), ["length = 0", "write its bytes"]),
        (file("name = \"a\"\nkind = \"full\"\nsha256 = \"0\""), ["sha256 of a", "64 hexadecimal"]),
        (file("name = \"a\"\nkind = \"half\""), ["expected", "vfpga"]),
    ] {
        let why = entry(&text).unwrap_err();
        assert!(words.iter().all(|word| why.contains(word)), "{text}: {why}");
        assert_eq!(why.lines().count(), 1, "{why}");
    }
}

#[test]
fn a_file_is_held_against_its_manifest() {
    let image = |count| SoftImage::new(vec![Logic::Vqe; count]).unwrap().to_bytes();
    let (bytes, digest) = (image(2), Sha256::of(&image(2)));
    let text = format!(
        "board = \"soft\"\n[[files]]\nname = \"a\"\nkind = \"soft\"\nlength = {}\nsha256 = \"{digest}\"",
        bytes.len()
    );
    let Entry { manifest, details } = entry(&text).unwrap();
    let mut file = details.files[0].clone();
    let check = |file: &ImageFile, bytes: &[u8]| {
        details.check_file(file, manifest.regions, bytes).map(|image| image.kind())
    };
    assert_eq!(check(&file, &bytes), Ok("soft"));
    assert!(check(&file, &image(1)).unwrap_err().contains("81 by its manifest"));
    file.length = None;
    assert!(check(&file, &image(1)).unwrap_err().contains("its SHA-256 is "));
    file.sha256 = None;
    assert!(check(&file, &image(1)).unwrap_err().contains("logic for 1 vFPGAs, and 2"));
    let boards = entry(BOARD).unwrap().details;
    let why = boards.check_file(&file, None, &bytes).unwrap_err();
    assert!(why.contains("it is for software cards, and its manifest is xcu250's"), "{why}");
}

/// A `.bin` file: sync, IDCODE, DESYNC.
fn bin(idcode: u32) -> Vec<u8> {
    let words = [0xaa99_5566, 0x3001_8001, idcode, 0x3000_8001, 13];
    words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect()
}

#[test]
fn a_file_for_another_part_or_of_another_kind_is_refused() {
    let text = format!("{BOARD}[[files]]\nname = \"a\"\nkind = \"shell\"");
    let Entry { details, .. } = entry(&text).unwrap();
    let mut file = details.files[0].clone();
    assert_eq!(details.check_file(&file, None, &bin(0x24b5_7093)).unwrap().kind(), "bin");
    let why = details.check_file(&file, None, &bin(0x14b7_d093)).unwrap_err();
    assert!(why.contains("it is for xcu55c or xcu280, and its manifest is xcu250's"), "{why}");
    let why = details.check_file(&file, None, &bin(0x0111_1093)).unwrap_err();
    assert!(why.contains("IDCODE 0x01111093"), "{why}");
    file.kind = FileKind::Full;
    let why = details.check_file(&file, None, &bin(0x04b5_7093)).unwrap_err();
    assert!(why.contains("it is a partial bitstream"), "{why}");
}

#[test]
fn what_a_manifest_does_not_say_to_be_mended_is_not() {
    let mends = |rest: &str| {
        let text = format!("source = {{ url = \"https://x\"{rest} }}");
        entry(&text).unwrap().manifest.mends
    };
    assert_eq!(entry("").unwrap().manifest.mends, Mends::default());
    assert_eq!(mends(&format!(", commit = \"{COMMIT}\"")), Mends::default());
    let all = format!(", commit = \"{COMMIT}\", mended = [\"windows\", \"selection\"]");
    assert_eq!(mends(&all), Mends::ALL);
}
