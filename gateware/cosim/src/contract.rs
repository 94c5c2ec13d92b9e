//! A driver that was written from docs/card-contract.md alone, on two software cards, of which the logic may be RTL.
//!
//! The driver is `contract/drive_card.py`, which reads its numbers out of the document. What it needs of a machine (register
//! accesses, memory, interrupts) it asks for line by line on its standard output and gets on its standard input; this side
//! does not interpret the accesses.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell::Map;
use hostmem::{Access, DmaMemory, SharedMapping, memfd};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use softcard::{CardConfig, CardHandle, Image, Link, PageGrant, Runtime, RuntimeConfig};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The driver's view of a machine.
struct Machine {
    cards: [CardHandle; 2],
    memories: Vec<(OwnedFd, Arc<SharedMapping>)>,
    /// Kept, so that the pages stay open.
    pages: Vec<PageGrant>,
}

fn bar(number: u64) -> Result<Bar> {
    let mut all = [Bar::Static, Bar::Xdma, Bar::Shell].into_iter();
    let found = all.find(|bar| u64::from(bar.number()) == number);
    found.ok_or_else(|| format!("there is no BAR{number}").into())
}

impl Machine {
    /// Carries out the request of one line; every number is hexadecimal.
    fn answer(&mut self, line: &str) -> Result<String> {
        let mut words = line.split_whitespace();
        let what = words.next().unwrap_or_default();
        let numbers = words.map(|word| u64::from_str_radix(word, 16));
        let numbers: Vec<u64> = numbers.collect::<std::result::Result<_, _>>()?;
        match (what, numbers.as_slice()) {
            ("read", &[card, bar_number, offset, bytes]) => {
                let value = self.card(card)?.read(bar(bar_number)?, offset, bytes as u8);
                return Ok(format!("{value:x}"));
            }
            ("write", &[card, bar_number, offset, bytes, value]) => {
                self.card(card)?.write(bar(bar_number)?, offset, bytes as u8, value);
            }
            ("memory", &[bytes]) => return self.memory(bytes as usize),
            ("map", &[card, iova, memory, offset, length]) => {
                let (_, mapping) = self.memories.get(memory as usize).ok_or("no such memory")?;
                let shared = DmaMemory::Shared { mapping: Arc::clone(mapping), offset };
                self.card(card)?.dma_map(iova, length, shared)?;
            }
            ("unmap", &[card, iova, length]) => self.card(card)?.dma_unmap(iova, length)?,
            ("page", &[card, window, page]) => {
                let grant = self.card(card)?.grant_page(window as u8, page as u8)?;
                self.pages.push(grant);
            }
            ("wait", &[card, vector, milliseconds]) => {
                return self.wait(card, vector as u16, milliseconds);
            }
            _ => return Err(format!("the driver asks for {line:?}").into()),
        }
        Ok("done".into())
    }

    fn card(&self, number: u64) -> Result<&CardHandle> {
        Ok(self.cards.get(number as usize).ok_or("no such card")?)
    }

    /// Makes memory that both sides map; answers with its path.
    fn memory(&mut self, bytes: usize) -> Result<String> {
        let fd = memfd::create("contract-driver", bytes)?;
        let mapping = SharedMapping::new(fd.as_fd(), 0, bytes, Access::ReadWrite)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        self.memories.push((fd, Arc::new(mapping)));
        Ok(path)
    }

    /// Waits for an interrupt and takes it.
    fn wait(&self, card: u64, vector: u16, milliseconds: u64) -> Result<String> {
        let vector = self.card(card)?.vector(vector).ok_or("no such vector")?;
        let timeout = PollTimeout::try_from(milliseconds)?;
        let ready = poll(&mut [PollFd::new(vector, PollFlags::POLLIN)], timeout)?;
        if ready > 0 {
            nix::unistd::read(vector, &mut [0; 8])?;
        }
        Ok(format!("{ready:x}"))
    }
}

/// Runs the driver on two cards of an image, whose shells have that map.
///
/// # Errors
/// When python3 is missing, or the last line of the driver, where something is not as the document says.
pub fn drive(image: Image, map: Map) -> Result<()> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let card = || CardConfig { map, ..CardConfig::new(Link::Switch, image) };
    let config = RuntimeConfig { cards: vec![card(), card()], ..RuntimeConfig::default() };
    let runtime = Runtime::start(config)?;
    let [one, other] = [0, 1].map(|number| runtime.card(number).ok_or("no such card"));
    let mut machine = Machine { cards: [one?, other?], memories: Vec::new(), pages: Vec::new() };
    let mut driver = Command::new("python3")
        .arg(format!("{root}/contract/drive_card.py"))
        .arg(format!("{root}/docs/card-contract.md"))
        .args((map == Map::Before2026).then_some("before-2026"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut answers = driver.stdin.take().ok_or("no standard input")?;
    for line in BufReader::new(driver.stdout.take().ok_or("no standard output")?).lines() {
        let answer = machine.answer(&line?)?;
        if writeln!(answers, "{answer}").is_err() {
            break;
        }
    }
    drop(answers);
    let ended = driver.wait_with_output()?;
    drop(machine);
    runtime.shutdown();
    match ended.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&ended.stderr).into()),
    }
}
