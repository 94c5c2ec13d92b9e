//! A verbs program that checks the data it moves between two cards, or on one.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use verbs_programs::data::{
    self,
    apart::Wishes,
    link::{DEPTH, Options},
    memory::{DmaBufIs, Tried},
    nccl,
};
use verbs_programs::ffi::{Context, EVERYTHING, Library, Operation, Patience, Service};

/// Moves messages between two QPs and checks every byte.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the devices and what they offer
    List,
    /// Every operation with every size at every path MTU
    Sweep(Endpoints),
    /// Lists of work requests
    Lists(Endpoints),
    /// What must go wrong, and how
    Errors {
        /// The cards pin registered memory, so that it cannot go away under them
        #[arg(long)]
        pinned: bool,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Arguments that are forbidden, and how they are refused
    Arguments(Endpoints),
    /// What the cards do not offer, and how it is refused: each call is told of on standard error before it is made
    Refusals(Endpoints),
    /// Registrations that change while they are used
    Rereg(Endpoints),
    /// Connections and datagrams with and without flow labels, each told of
    Flows(Endpoints),
    /// Memory of every kind, by every name
    Memory {
        /// The cards pin registered memory, so that they keep what a program puts other memory in place of
        #[arg(long)]
        pinned: bool,
        /// The host copies for them all the same, from what is there and to it
        #[arg(long)]
        copied: bool,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Several connections that receive from one queue
    Shared(Endpoints),
    /// Many connections at once, with messages on all of them
    Many {
        /// Connections, of two QPs each
        #[arg(long)]
        pairs: usize,
        /// Messages on each
        #[arg(long, default_value_t = 2)]
        rounds: u32,
        /// Receive from one shared queue
        #[arg(long)]
        shared: bool,
        /// Send when this file is there
        #[arg(long)]
        go: Option<PathBuf>,
        /// Stay until killed
        #[arg(long)]
        stay: bool,
        /// Connect and part by librdmacm, the side that receives at this port
        #[arg(long, value_name = "PORT")]
        managed: Option<u16>,
        #[command(flatten)]
        link: Endpoints,
    },
    /// What cards as published carry without the tunnel, and what they refuse
    Published(Endpoints),
    /// As many QPs as both devices say there may be, and one more of each
    Fill(Endpoints),
    /// XRC domains of several contexts, their queues, and targets that they share
    Xrc {
        /// The cable loses frames: a refusal may be lost, and is not said again
        #[arg(long)]
        bad_cable: bool,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Many connections that count in the same words by atomics
    Counter(Endpoints),
    /// What the extended verbs tell, and what they refuse
    Extended(Endpoints),
    /// Take the ports off their cables and put them back, under messages
    Links {
        /// The program that does it
        #[arg(long)]
        balboa: PathBuf,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Address handles that are destroyed as soon as something is posted with them
    Handles(Endpoints),
    /// Threads that are cancelled while they wait for events
    Cancel {
        /// Device
        #[arg(long, default_value = "balboa0")]
        device: String,
    },
    /// Memory of the devices' own
    DeviceMemory(Endpoints),
    /// Regions without memory
    NullRegions(Endpoints),
    /// Completion queues that are resized while messages complete on them
    Resize(Endpoints),
    /// Completion queues of every vector, and one that is flooded with events
    Vectors(Endpoints),
    /// Add addresses to the ports and delete them, and connect by them
    Addresses {
        /// The program that does it
        #[arg(long)]
        balboa: PathBuf,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Attach the service that preprocesses rows, and move rows through it
    Rows {
        /// The program that does it
        #[arg(long)]
        balboa: PathBuf,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Attach the service that looks for patterns, and move messages with and without them
    Inspected {
        /// The program that does it
        #[arg(long)]
        balboa: PathBuf,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Reach for a page as long as it is registered, and when it is no more
    Reach {
        /// How often, before and after
        #[arg(long, default_value_t = 1000)]
        tries: u64,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Take memory back under transfers, in every way, and see that nothing reaches it after that
    Races {
        /// How often, each way
        #[arg(long, default_value_t = 100)]
        tries: u64,
        /// Only WRITEs and READs, and nothing that takes keys: cards as published have no more
        #[arg(long)]
        one_sided: bool,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Send to queue pairs that do not wait for it, and see that others go on
    Strays(Endpoints),
    /// Long messages whose memory goes or is taken back while they move
    Grants {
        /// One of memory that never answers and no others, by this device node of userfaultfd's
        #[arg(long)]
        silent: Option<PathBuf>,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Take memory from a card behind an IOMMU, while its key stays, and reach for it
    Unmapped {
        /// The file that says at which address the card sees it
        place: PathBuf,
        /// How often, before and after
        #[arg(long, default_value_t = 20)]
        tries: u64,
        #[command(flatten)]
        link: Endpoints,
    },
    /// QPs that are drained, broken, used again and connected to themselves, and fences
    States {
        /// The cards have Reliable Connections alone
        #[arg(long)]
        reliable_only: bool,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Datagrams to multicast groups, from one device to all
    Multicast {
        /// The cables are bad: some datagrams are lost
        #[arg(long)]
        bad: bool,
    },
    /// Datagrams to multicast groups both ways between this process and another, which runs the same on
    /// another device: one waits, the other is told where
    MulticastApart {
        /// Device
        #[arg(short, long, default_value = "balboa0")]
        device: String,
        /// TCP port
        #[arg(short, long)]
        port: u16,
        /// The network device on which the kernel is to take the groups' packets
        #[arg(long)]
        join: Option<String>,
        /// Then join as many groups as a program can be in
        #[arg(long)]
        all_groups: bool,
        /// Where the other process waits
        host: Option<String>,
    },
    /// Messages of every kind both ways between this process and another, which runs the same on
    /// another device: one waits, the other is told where
    Apart {
        /// Device
        #[arg(short, long, default_value = "balboa0")]
        device: String,
        /// TCP port
        #[arg(short, long)]
        port: u16,
        /// Local ACK timeout, 4.096 µs × 2^N
        #[arg(long, value_name = "N", default_value_t = 14)]
        timeout: u8,
        /// What the QPs offer
        #[arg(long, default_value = "rc")]
        service: Transport,
        /// GID index
        #[arg(long, default_value_t = 1)]
        gid: u8,
        /// Name no key in READs of nothing: none is needed
        #[arg(long)]
        keyless_empty_reads: bool,
        /// The cable loses frames: of UC and UD not everything need arrive
        #[arg(long)]
        bad_cable: bool,
        /// WRITEs and READs of the process that connects alone
        #[arg(long)]
        one_sided: bool,
        /// WRITEs may be acknowledged before they have landed
        #[arg(long)]
        late: bool,
        /// Where the other process waits
        host: Option<String>,
    },
    /// NCCL's pattern both ways between this process and another, which runs the same on another device: one
    /// waits, the other is told where
    Nccl {
        /// Device
        #[arg(short, long, default_value = "balboa0")]
        device: String,
        /// TCP port
        #[arg(short, long)]
        port: u16,
        /// Queue pairs to send by, and as many to receive by
        #[arg(long, default_value_t = 4)]
        qps: usize,
        /// MiB of the longest message
        #[arg(long, default_value_t = 64)]
        mib: u16,
        /// Local ACK timeout, 4.096 µs × 2^N
        #[arg(long, value_name = "N", default_value_t = 20)]
        timeout: u8,
        /// Go by a GID of IPv6
        #[arg(long)]
        ipv6: bool,
        /// Go by a GID of this network
        #[arg(long, value_name = "ADDRESS/BITS", value_parser = network)]
        network: Option<(IpAddr, u8)>,
        /// The cable loses frames: a refusal may be lost, and is not said again
        #[arg(long)]
        bad_cable: bool,
        /// Where the other process waits
        host: Option<String>,
    },
    /// One long message
    Huge {
        /// How it is moved
        operation: Transfer,
        /// MiB of it
        #[arg(long, default_value_t = 1024)]
        mib: u16,
        /// Path MTU in bytes
        #[arg(long, default_value = "4096")]
        mtu: Mtu,
        #[command(flatten)]
        link: Endpoints,
    },
}

#[derive(Debug, Args)]
struct Endpoints {
    /// Device that sends, writes and reads
    #[arg(long, default_value = "balboa0")]
    from: String,
    /// Device that receives, is written to and read from
    #[arg(long, default_value = "balboa1")]
    to: String,
    /// GID index
    #[arg(long, default_value_t = 1)]
    gid: u8,
    /// Wait on completion channels instead of polling
    #[arg(long)]
    events: bool,
    /// Make the queues in a thread domain
    #[arg(long)]
    thread_domain: bool,
    /// Post and poll by the extended functions
    #[arg(long)]
    extended: bool,
    /// Make the connection an unreliable one; a sweep then has no WRITE without immediate data, and no READ
    #[arg(long, conflicts_with = "extended")]
    unreliable: bool,
    /// Local ACK timeout, 4.096 µs × 2^N
    #[arg(long, value_name = "N", default_value_t = 14)]
    timeout: u8,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mtu {
    #[value(name = "256")]
    Of256,
    #[value(name = "512")]
    Of512,
    #[value(name = "1024")]
    Of1024,
    #[value(name = "2048")]
    Of2048,
    #[value(name = "4096")]
    Of4096,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    Rc,
    Uc,
    Ud,
}

impl From<Transport> for Service {
    fn from(kind: Transport) -> Self {
        match kind {
            Transport::Rc => Self::Reliable,
            Transport::Uc => Self::Unreliable,
            Transport::Ud => Self::Datagram,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transfer {
    Send,
    SendImmediate,
    Write,
    WriteImmediate,
    Read,
}

impl From<&Endpoints> for Options {
    fn from(link: &Endpoints) -> Self {
        Self {
            devices: [link.from.clone(), link.to.clone()],
            gid_index: link.gid,
            events: link.events,
            thread_domain: link.thread_domain,
            extended: link.extended.then_some(EVERYTHING),
            service: if link.unreliable { Service::Unreliable } else { Service::Reliable },
            cq_entries: 2 * DEPTH,
            patience: Patience { timeout: link.timeout, ..Patience::default() },
        }
    }
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::List => list()?,
        Command::Sweep(link) => {
            println!("{} messages arrived as they should", data::sweep(&(&link).into())?);
        }
        Command::Lists(link) => {
            println!("{} listed messages arrived as they should", data::lists(&(&link).into())?);
        }
        Command::Errors { pinned, link } => {
            let errors = data::errors::all(&(&link).into(), pinned)?;
            println!("{errors} errors came as they should");
        }
        Command::Arguments(link) => {
            let count = data::arguments::all(&(&link).into())?;
            println!("{count} calls were taken or refused as they should be");
        }
        Command::Refusals(link) => {
            let tell = |call: &str, argument: &str| eprintln!("call {call}: {argument}");
            let count = data::refusals::all(&(&link).into(), tell)?;
            println!("{count} calls were refused as they should be");
        }
        Command::Rereg(link) => {
            println!(
                "{} changes of a region were made or refused",
                data::rereg::all(&(&link).into())?
            );
        }
        Command::Flows(link) => {
            let count = data::flows::all(&(&link).into(), |flow| println!("{flow}"))?;
            println!("{count} flows arrived");
        }
        Command::Memory { pinned, copied, link } => {
            let tried = data::memory::all(&(&link).into(), pinned, copied)?;
            let Tried { regions, huge, dma_buf } = tried;
            let huge = if huge { "one" } else { "none" };
            let dma_buf = match dma_buf {
                DmaBufIs::Reached => "one a dma-buf",
                DmaBufIs::Refused => "a dma-buf was refused, for this kernel shares no pages of it",
                DmaBufIs::Missing => "this kernel makes no dma-buf",
            };
            println!("bytes moved in {regions} regions, {huge} of them of huge pages; {dma_buf}");
        }
        Command::Shared(link) => {
            println!("{} shared messages arrived", data::shared::all(&(&link).into())?);
        }
        Command::Many { pairs, rounds, shared, go, stay, managed, link } => {
            let wishes = data::many::Wishes { pairs, rounds, shared, go, stay, managed };
            let count = data::many::all(&(&link).into(), &wishes)?;
            println!("{count} messages arrived on {pairs} connections");
        }
        Command::Published(link) => {
            let (arrived, refused) = data::published::all(&(&link).into())?;
            println!("{arrived} messages arrived whole, {refused} things were refused");
        }
        Command::Fill(link) => {
            data::many::fill(&(&link).into())?;
            println!("of {} and {} are all QPs that they say", link.from, link.to);
        }
        Command::Xrc { bad_cable, link } => {
            let count = data::xrc::all(&(&link).into(), bad_cable)?;
            println!("{count} XRC messages arrived");
        }
        Command::Counter(link) => {
            println!("{} atomics counted once", data::counter::all(&(&link).into())?);
        }
        Command::Handles(link) => {
            println!("{} datagrams arrived in order", data::handles::all(&(&link).into())?);
        }
        Command::Cancel { device } => {
            println!("{} threads were cancelled", data::cancel::all(&device)?);
        }
        Command::DeviceMemory(link) => {
            let count = data::device_memory::all(&(&link).into())?;
            println!("{count} messages of device memory arrived");
        }
        Command::NullRegions(link) => {
            let count = data::null::all(&(&link).into())?;
            println!("{count} messages of null regions arrived");
        }
        Command::Resize(link) => {
            println!("{} messages arrived around resizes", data::resize::all(&(&link).into())?);
        }
        Command::Vectors(link) => {
            let count = data::vectors::all(&(&link).into())?;
            println!("{count} completions were told of, each on its vector");
        }
        Command::Extended(link) => {
            data::extended::all(&(&link).into())?;
            println!("the extended verbs do what they should");
        }
        Command::Links { balboa, link } => {
            data::port::links(&(&link).into(), &balboa)?;
            println!("links went down and came back");
        }
        Command::Addresses { balboa, link } => {
            data::port::addresses(&(&link).into(), &balboa)?;
            println!("addresses came and went");
        }
        Command::Rows { balboa, link } => {
            let count = data::rows::all(&(&link).into(), &balboa)?;
            println!("{count} tables arrived as they should");
        }
        Command::Inspected { balboa, link } => {
            let count = data::inspected::all(&(&link).into(), &balboa)?;
            println!("{count} messages were let pass, counted or refused as they should");
        }
        Command::Reach { tries, link } => {
            let [before, after] = data::reach::registered(&(&link).into(), tries)?;
            println!("reached in {before} of {tries} before and in {after} of {tries} after");
        }
        Command::Races { tries, one_sided, link } => {
            let told = data::races::all(&(&link).into(), tries, one_sided)?;
            println!("nothing came behind the end of memory in {} races: {told}", told.all());
        }
        Command::Strays(link) => {
            let count = data::strays::all(&(&link).into())?;
            println!("{count} strays failed and harmed nobody");
        }
        Command::Grants { silent: Some(node), link } => {
            data::grants::silent(&(&link).into(), &node)?;
            println!("what does not answer is not sent");
        }
        Command::Grants { silent: None, link } => {
            let count = data::grants::all(&(&link).into())?;
            println!("{count} long messages went by the book");
        }
        Command::Unmapped { place, tries, link } => {
            let [before, after] = data::reach::unmapped(&(&link).into(), &place, tries)?;
            println!("reached in {before} of {tries} before and in {after} of {tries} after");
        }
        Command::Apart {
            device,
            port,
            timeout,
            service,
            gid,
            keyless_empty_reads,
            bad_cable,
            one_sided,
            late,
            host,
        } => {
            let options = Options {
                devices: [device.clone(), device],
                gid_index: gid,
                events: true,
                thread_domain: false,
                extended: None,
                service: service.into(),
                cq_entries: 2 * DEPTH,
                patience: Patience { timeout, ..Patience::default() },
            };
            let mislabels = options.devices[0].starts_with("rxe");
            let keyless = keyless_empty_reads;
            let wishes = Wishes { keyless, bad_cable, mislabels, one_sided, late };
            let done = data::apart::run(&options, host.as_deref(), port, wishes)?;
            println!("{} messages arrived as they should", done.messages);
            if done.atomics > 0 {
                println!("{} atomics counted once", done.atomics);
                println!("{} keys were taken back", done.keys);
            }
        }
        Command::States { reliable_only, link } => {
            let count = data::states::all(&(&link).into(), reliable_only)?;
            println!("{count} states were as they should");
        }
        Command::Multicast { bad } => {
            println!("{} copies arrived in their groups", data::multicast::all(bad)?);
        }
        Command::MulticastApart { device, port, join, all_groups, host } => {
            let (host, join) = (host.as_deref(), join.as_deref());
            let count = data::multicast::apart(&device, host, port, join)?;
            println!("{count} copies arrived in their groups");
            if all_groups {
                println!("{} groups and no more", data::multicast::all_groups(&device)?);
            }
        }
        Command::Nccl { device, port, qps, mib, timeout, ipv6, network, bad_cable, host } => {
            let (gid, long) = (nccl::Wanted { ipv6, network }, usize::from(mib) << 20);
            let wishes = nccl::Wishes { device, gid, qps, long, timeout, bad_cable };
            let count = nccl::run(&wishes, host.as_deref(), port)?;
            println!("{count} messages arrived as NCCL's do");
        }
        Command::Huge { operation, mib, mtu, link } => {
            let operation = match operation {
                Transfer::Send => Operation::Send,
                Transfer::SendImmediate => Operation::SendImmediate,
                Transfer::Write => Operation::Write,
                Transfer::WriteImmediate => Operation::WriteImmediate,
                Transfer::Read => Operation::Read,
            };
            let mtu = data::MTUS[mtu as usize];
            data::huge(&(&link).into(), operation, usize::from(mib) << 20, mtu)?;
            println!("{mib} MiB arrived as they should");
        }
    }
    Ok(())
}

/// An address and how many of its bits count.
fn network(text: &str) -> Result<(IpAddr, u8), String> {
    let parts = text.split_once('/');
    let told = parts.and_then(|(address, bits)| Some((address.parse().ok()?, bits.parse().ok()?)));
    told.ok_or_else(|| "write an address and a number, such as 10.77.0.0/16".to_owned())
}

fn list() -> anyhow::Result<()> {
    let library = Library::open()?;
    for name in Context::names(library)? {
        let context = Context::open(library, &name)?;
        let (device, port) = (context.attributes()?, context.port()?);
        println!(
            "{name}: max_qp {}, max_sge {}, max_mr_size {}, max_msg_sz {}, gid_tbl_len {}",
            device.max_qp, device.max_sge, device.max_mr_size, port.max_msg_sz, port.gid_tbl_len
        );
    }
    Ok(())
}
