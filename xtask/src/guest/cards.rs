//! The cards of a virtual machine: their servers here, their slots there, and the requests that the machine may make
//! about them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use harness::agent::Cable;
use harness::process::{Running, Task};
use harness::vm::Hardware;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// The time limit of a card to be ready, and to report its counters.
const START: Duration = Duration::from_secs(2 * 60);
/// Cards of a machine with an IOMMU.
const CARDS: usize = 2;
/// The card with a neighbour: another function of its slot, of another kind and in its IOMMU group.
const BESIDE: usize = 1;
/// The slot on the root bus that the first card's own slot hangs on.
const FIRST_SLOT: usize = 0x10;

/// The servers and options of a machine's cards.
#[derive(Debug)]
pub struct Cards {
    directory: PathBuf,
    softcard: PathBuf,
    count: usize,
    /// Further options of their servers.
    options: &'static str,
}

impl Cards {
    /// The cards of a machine with that hardware.
    pub fn new(directory: &Path, built: &Path, hardware: Hardware) -> Self {
        let count = match hardware {
            Hardware::Plain | Hardware::IntelIommuRxe => 1,
            Hardware::IntelIommu | Hardware::VirtioIommu | Hardware::Published | Hardware::Fpga => {
                CARDS
            }
        };
        // QEMU splits a store of 32 bytes.
        let options = match hardware {
            Hardware::Published => "--image stock --join-split-stores",
            Hardware::Fpga => "--play-fpga",
            _ => "",
        };
        let (directory, softcard) = (directory.to_owned(), built.join("softcard"));
        Self { directory, softcard, count, options }
    }

    fn device(&self, card: usize) -> Value {
        let socket = json!({ "type": "unix", "path": self.socket(card) });
        json!({
            "driver": "vfio-user-pci",
            "id": format!("card{card}"),
            "bus": format!("slot{card}"),
            "multifunction": card == BESIDE,
            "socket": socket,
        })
    }

    fn socket(&self, card: usize) -> PathBuf {
        self.directory.join(format!("card{card}"))
    }

    /// Adds to QEMU's arguments a slot for each card, and the card in it.
    pub fn plugged_into(&self, mut task: Task) -> Task {
        for card in 0..self.count {
            let slot = FIRST_SLOT + card;
            let port = format!("id=slot{card},chassis={slot},slot={slot},addr={slot:x}");
            task = task.arg("-device").arg(format!("pcie-root-port,{port}"));
            task = task.arg("-device").arg(self.device(card).to_string());
            if card == BESIDE {
                let neighbour = format!("virtio-balloon-pci,bus=slot{card},addr=0.1");
                task = task.arg("-device").arg(neighbour);
            }
        }
        task
    }

    /// Starts the cards, on one cable.
    ///
    /// # Errors
    /// When one of them does not come up.
    pub fn serve(&self) -> Result<Served> {
        let servers: Result<_> = (0..self.count).map(|card| self.start(card).map(Some)).collect();
        Ok(Served { servers: servers?, former: String::new() })
    }

    /// Starts those again that were killed.
    ///
    /// # Errors
    /// When one of them does not come up.
    pub fn revive(&self, served: &mut Served) -> Result<()> {
        let dead = served.servers.iter_mut().enumerate().filter(|(_, server)| server.is_none());
        for (card, server) in dead {
            *server = Some(self.start(card)?);
        }
        Ok(())
    }

    /// The cable, from the first card's end.
    pub fn cable(&self) -> Cable {
        let port = |card: usize| self.directory.join(format!("port{card}"));
        Cable { near: port(0), far: port(1) }
    }

    fn start(&self, card: usize) -> Result<Running> {
        let cable = if card == 0 { self.cable() } else { self.cable().turned() };
        let task = Task::new(&self.softcard).args(["serve", "--socket"]).arg(self.socket(card));
        let task = task.arg("--port").arg(cable.port()).words(self.options);
        let mut server = task.tidy().limit(START).start()?;
        server.wait_until("it was ready", |it| it.output().lines().any(|line| line == "ready"))?;
        Ok(server.unlimited())
    }
}

/// The cards of a machine, as long as they are served.
#[derive(Debug)]
pub struct Served {
    /// `None` of a card that was killed.
    servers: Vec<Option<Running>>,
    /// The output of servers that were killed.
    former: String,
}

impl Served {
    /// The output of all servers.
    pub fn log(&self) -> String {
        let now: String = self.servers.iter().flatten().map(Running::errors).collect();
        format!("{}{now}", self.former)
    }

    /// Carries out a request of the machine's, and answers in one line: `done`, numbers, or an error.
    pub fn answer(&mut self, asked: &str) -> String {
        self.obey(asked).unwrap_or_else(|error| format!("{error:#}").replace('\n', " "))
    }

    fn obey(&mut self, asked: &str) -> Result<String> {
        let words = asked.rsplit_once(" card ").and_then(|(what, card)| {
            let card: usize = card.parse().ok()?;
            (card < self.servers.len()).then_some((what, card))
        });
        let Some((what, card)) = words else { bail!("there is no such thing: {asked}") };
        match what {
            "kill" => self.kill(card)?,
            "count" => return self.count(card),
            _ => bail!("there is no such thing: {asked}"),
        }
        Ok("done".to_owned())
    }

    fn server(&mut self, card: usize) -> Result<&mut Option<Running>> {
        self.servers.get_mut(card).context("there is no such card")
    }

    fn kill(&mut self, card: usize) -> Result<()> {
        let server = self.server(card)?.take().context("it has gone")?;
        server.signal(Signal::SIGKILL)?;
        self.former.push_str(&server.wait()?.stderr);
        Ok(())
    }

    /// A card's objects and counters, as `NAME=NUMBER` by spaces.
    fn count(&mut self, card: usize) -> Result<String> {
        let server = self.server(card)?.as_ref().context("it has gone")?;
        let told = |server: &Running| -> Vec<String> {
            let lines = server.errors();
            let counts =
                lines.lines().filter_map(|line| line.find("clients=").map(|at| &line[at..]));
            counts.map(str::to_owned).collect()
        };
        let before = told(server).len();
        server.signal(Signal::SIGUSR1)?;
        let started = Instant::now();
        loop {
            if let Some(counts) = told(server).get(before) {
                return Ok(counts.clone());
            }
            if started.elapsed() > START {
                bail!("card {card} does not tell what it holds");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
