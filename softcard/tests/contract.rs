//! A driver that was written from docs/card-contract.md alone, against software cards.
//!
//! The driver is a Python program that reads its numbers out of the document. What it needs of a
//! machine (register accesses, memory, interrupts) it asks for line by line on its standard output
//! and gets on its standard input; this side does not interpret the accesses.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell::Map;
use hostmem::{Access, DmaMemory, SharedMapping, memfd};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use softcard::{CardConfig, CardHandle, Image, Link, PageGrant, Runtime, RuntimeConfig};

/// The driver's view of a machine.
struct Machine {
    cards: Vec<CardHandle>,
    memories: Vec<(OwnedFd, Arc<SharedMapping>)>,
    /// Kept, so that the pages stay open.
    pages: Vec<PageGrant>,
}

fn number(word: &str) -> u64 {
    u64::from_str_radix(word, 16).unwrap_or_else(|error| panic!("{word}: {error}"))
}

fn bar(number: u64) -> Bar {
    [Bar::Static, Bar::Xdma, Bar::Shell]
        .into_iter()
        .find(|bar| u64::from(bar.number()) == number)
        .unwrap_or_else(|| panic!("there is no BAR{number}"))
}

impl Machine {
    /// Carries out the request of one line; every number is hexadecimal.
    fn answer(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (what, numbers) = words.split_first().expect("an empty line");
        let numbers: Vec<u64> = numbers.iter().map(|word| number(word)).collect();
        match (*what, numbers.as_slice()) {
            ("read", &[card, bar_number, offset, bytes]) => {
                let card = &self.cards[card as usize];
                format!("{:x}", card.read(bar(bar_number), offset, bytes as u8))
            }
            ("write", &[card, bar_number, offset, bytes, value]) => {
                self.cards[card as usize].write(bar(bar_number), offset, bytes as u8, value);
                "done".into()
            }
            ("memory", &[bytes]) => self.memory(bytes as usize),
            ("map", &[card, iova, memory, offset, length]) => {
                let mapping = Arc::clone(&self.memories[memory as usize].1);
                let shared = DmaMemory::Shared { mapping, offset };
                self.cards[card as usize].dma_map(iova, length, shared).unwrap();
                "done".into()
            }
            ("unmap", &[card, iova, length]) => {
                self.cards[card as usize].dma_unmap(iova, length).unwrap();
                "done".into()
            }
            ("page", &[card, window, page]) => {
                let card = &self.cards[card as usize];
                self.pages.push(card.grant_page(window as u8, page as u8).unwrap());
                "done".into()
            }
            ("wait", &[card, vector, milliseconds]) => {
                self.wait(card as usize, vector as u16, milliseconds)
            }
            _ => panic!("the driver asks for {line:?}"),
        }
    }

    /// Makes memory that both sides map; answers with its path.
    fn memory(&mut self, bytes: usize) -> String {
        let fd = memfd::create("contract-driver", bytes).unwrap();
        let mapping = SharedMapping::new(fd.as_fd(), 0, bytes, Access::ReadWrite).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        self.memories.push((fd, Arc::new(mapping)));
        path
    }

    /// Waits for an interrupt and takes it.
    fn wait(&self, card: usize, vector: u16, milliseconds: u64) -> String {
        let vector = self.cards[card].vector(vector).expect("a vector");
        let timeout = PollTimeout::try_from(milliseconds).unwrap();
        let ready = poll(&mut [PollFd::new(vector, PollFlags::POLLIN)], timeout).unwrap();
        if ready > 0 {
            nix::unistd::read(vector, &mut [0; 8]).unwrap();
        }
        format!("{ready:x}")
    }
}

/// Runs the driver on two cards whose shells have that map.
fn drive(map: Map, arguments: &[&str]) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let card = || CardConfig {
        link: Link::Switch,
        map,
        image: Image::Vqe,
        vfpgas: None,
        plays_fpga: false,
        congestion: Default::default(),
        protection: None,
        host: None,
    };
    let config = RuntimeConfig { cards: vec![card(), card()], ..RuntimeConfig::default() };
    let runtime = Runtime::start(config).unwrap();
    let cards = (0..2).map(|number| runtime.card(number).unwrap()).collect();
    let mut machine = Machine { cards, memories: Vec::new(), pages: Vec::new() };

    let mut driver = Command::new("python3")
        .arg(format!("{root}/contract/drive_card.py"))
        .arg(format!("{root}/docs/card-contract.md"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3 runs the driver");
    let mut answers = driver.stdin.take().unwrap();
    for line in BufReader::new(driver.stdout.take().unwrap()).lines() {
        let answer = machine.answer(&line.unwrap());
        if writeln!(answers, "{answer}").is_err() {
            break;
        }
    }
    drop(answers);
    let ended = driver.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    drop(machine);
    runtime.shutdown();
}

#[test]
fn a_driver_written_from_the_document_alone_brings_two_cards_up_and_writes() {
    drive(Map::Since2026, &[]);
}

#[test]
fn the_same_driver_drives_shells_of_before_2026() {
    drive(Map::Before2026, &["before-2026"]);
}
