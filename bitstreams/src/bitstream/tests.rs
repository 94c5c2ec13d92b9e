use super::*;

const IDCODE_U55C: u32 = 0x14b7_d093;
/// The register whose packet holds the bitstreams of further dies.
const NEXT_DIE: u32 = 30;
const NOP: u32 = 0x2000_0000;

fn write(register: u32, words: &[u32]) -> Vec<u32> {
    let head = 1 << 29 | 2 << 27 | register << 13 | u32::try_from(words.len()).unwrap();
    [&[head], words].concat()
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Packets of a bitstream of a whole device, or of a part of one.
fn packets(full: bool, idcode: u32) -> Vec<u32> {
    let mut words = vec![0xffff_ffff; 8];
    words.extend([0x0000_00bb, 0x1122_0044, 0xffff_ffff, SYNC, NOP]);
    words.extend(write(register::CMD, &[7]));
    words.extend(write(register::IDCODE, &[idcode]));
    if full {
        words.extend(write(register::COR0, &[0x3800_3fe5]));
    }
    // A write of no words, and the packet of type 2 with its words.
    words.extend(write(register::FDRI, &[]));
    words.push(2 << 29 | 2 << 27 | 200);
    words.extend([0; 200]);
    words.extend(write(register::CMD, &[command::START]));
    words.extend(write(register::CRC, &[0x1234_5678]));
    words.extend(write(register::CMD, &[command::DESYNC]));
    words.extend([NOP; 16]);
    words
}

fn bit(design: &str, part: &str, words: &[u32]) -> Vec<u8> {
    let mut bytes = PREAMBLE.to_vec();
    for (key, text) in [(b'a', design), (b'b', part), (b'c', "2026/08/01"), (b'd', "12:00:00")] {
        bytes.push(key);
        bytes.extend(u16::try_from(text.len() + 1).unwrap().to_be_bytes());
        bytes.extend(text.as_bytes());
        bytes.push(0);
    }
    let body = bytes_of(words);
    bytes.push(b'e');
    bytes.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
    bytes.extend(body);
    bytes
}

const U55C: &str = "xcu55c-fsvh2892-2L-e";
const DESIGN: &str = "cyt_top;UserID=0XFFFFFFFF;Version=2024.2";

#[test]
fn a_bit_file_says_what_it_is_and_for_which_part() {
    let it = Bitstream::parse_bit(&bit(DESIGN, U55C, &packets(true, IDCODE_U55C))).unwrap();
    let header = it.header.as_ref().unwrap();
    assert_eq!((header.design.as_str(), header.part.as_str()), (DESIGN, U55C));
    assert_eq!((header.date.as_str(), header.time.as_str()), ("2026/08/01", "12:00:00"));
    assert_eq!((it.idcode, it.crc_words, it.scope), (IDCODE_U55C, 1, Coverage::Full));
    assert_eq!(it.frame_bytes, 800);
    // The U280 has the same IDCODE; the part number tells.
    assert_eq!(it.parts().iter().map(|part| part.board).collect::<Vec<_>>(), ["u55c"]);
}

#[test]
fn a_bin_file_is_for_every_part_with_its_idcode() {
    let it = Bitstream::parse_bin(&bytes_of(&packets(false, IDCODE_U55C))).unwrap();
    assert_eq!((it.header.as_ref(), it.scope), (None, Coverage::Partial));
    assert_eq!(it.parts().iter().map(|part| part.board).collect::<Vec<_>>(), ["u55c", "u280"]);
}

#[test]
fn a_header_that_says_partial_is_believed_before_the_packets() {
    let design = format!("{DESIGN};PARTIAL=TRUE");
    let it = Bitstream::parse_bit(&bit(&design, U55C, &packets(true, IDCODE_U55C))).unwrap();
    assert_eq!(it.scope, Coverage::Partial);
}

#[test]
fn the_bitstreams_of_further_dies_are_passed_over() {
    let mut words = packets(true, IDCODE_U55C);
    let inner = packets(true, 0x0123_4093);
    words.extend([SYNC, NOP]);
    words.extend(write(NEXT_DIE, &[]));
    words.push(2 << 29 | 2 << 27 | u32::try_from(inner.len()).unwrap());
    words.extend(inner);
    words.extend(write(register::CMD, &[command::DESYNC]));
    let it = Bitstream::parse_bin(&bytes_of(&words)).unwrap();
    assert_eq!((it.idcode, it.frame_bytes, it.crc_words), (IDCODE_U55C, 800, 1));
}

#[test]
fn every_length_but_the_right_one_is_refused() {
    let whole = bit(DESIGN, U55C, &packets(true, IDCODE_U55C));
    for length in 0..whole.len() {
        assert!(Bitstream::parse_bit(&whole[..length]).is_err(), "{length} bytes");
    }
    let why = Bitstream::parse_bit(&whole[..whole.len() - 1]).unwrap_err();
    assert!(why.starts_with("it is truncated: its header says"), "{why}");
    let longer = [&whole[..], b"x"].concat();
    assert!(Bitstream::parse_bit(&longer).unwrap_err().contains("1 bytes behind the"));
    // Without a header the bytes behind the command DESYNC may be missing: they do nothing.
    let packets = packets(true, IDCODE_U55C);
    let whole = bytes_of(&packets);
    for length in 0..whole.len() - 64 {
        assert!(Bitstream::parse_bin(&whole[..length]).is_err(), "{length} bytes");
    }
    let more = bytes_of(&[&packets[..], &[0xdead_beef]].concat());
    assert!(Bitstream::parse_bin(&more).unwrap_err().contains("0xdeadbeef at byte"));
}

#[test]
fn swapped_files_are_refused_by_what_was_swapped() {
    let swapped = |how: fn([u8; 4]) -> [u8; 4]| {
        let words = packets(false, IDCODE_U55C);
        let bytes: Vec<u8> = words.iter().flat_map(|word| how(word.to_be_bytes())).collect();
        Bitstream::parse_bin(&bytes).unwrap_err()
    };
    assert!(swapped(|[a, b, c, d]| [d, c, b, a]).starts_with("the bytes of each word of 32 bits"));
    assert!(swapped(|[a, b, c, d]| [c, d, a, b]).starts_with("the halves of each word"));
    assert!(swapped(|[a, b, c, d]| [b, a, d, c]).starts_with("the bytes of each word of 16 bits"));
    assert!(swapped(|word| word.map(u8::reverse_bits)).starts_with("the bits of each byte"));
}

#[test]
fn what_contradicts_itself_is_refused() {
    let other = bit(DESIGN, "xcu250-figd2104-2L-e", &packets(true, IDCODE_U55C));
    let why = Bitstream::parse_bit(&other).unwrap_err();
    assert!(why.contains("xcu250") && why.contains("0x14b7d093"), "{why}");
    let none: Vec<u32> = [&[SYNC][..], &write(register::CMD, &[command::DESYNC])].concat();
    assert!(
        Bitstream::parse_bin(&bytes_of(&none)).unwrap_err().contains("no packet writes IDCODE")
    );
    let alone = bytes_of(&[SYNC, 2 << 29 | 2 << 27 | 1, 0]);
    assert!(Bitstream::parse_bin(&alone).unwrap_err().contains("follows none"));
    let kind = bytes_of(&[SYNC, 0xe000_0000]);
    assert!(Bitstream::parse_bin(&kind).unwrap_err().contains("packet of type 7"));
    let odd = bit("a\nb", U55C, &packets(true, IDCODE_U55C));
    assert!(Bitstream::parse_bit(&odd).unwrap_err().contains("field a"));
}

#[test]
fn a_part_of_a_device_has_no_command_that_configures_all_of_it_anew() {
    let with = |full, commands: &[u32]| {
        let mut words = packets(full, IDCODE_U55C);
        let end = words.len() - 18;
        words.splice(end..end, write(register::CMD, commands));
        Bitstream::parse_bin(&bytes_of(&words))
    };
    for commands in [&[command::IPROG][..], &[command::BSPI_READ], &[0, command::IPROG]] {
        assert!(with(false, commands).unwrap_err().contains("configures itself anew"));
        // A whole one may hand over to another in the flash memory.
        assert_eq!(with(true, commands).unwrap().scope, Coverage::Full);
    }
    assert_eq!(with(false, &[command::RCRC]).unwrap().scope, Coverage::Partial);
}
