//! OpenMPI over software cards, TCP and shared memory: latency and bandwidth between two ranks, as the OSU benchmarks
//! `osu_latency` and `osu_bw` measure them, by a program of ours that looks at the data too.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::process::Task;
use harness::setting::Daemon;
use harness::suites::MPI;

use super::figures::{Column, Figures};

/// How long any one run may take.
const LIMIT: Duration = Duration::from_secs(300);
/// Message sizes of the rows.
const LATENCY_SIZES: [u64; 3] = [1, 4096, 65_536];
const BANDWIDTH_SIZES: [u64; 3] = [4096, 65_536, 4_194_304];

/// The columns measured, and the variables of OpenMPI's and UCX's that select each.
const WAYS: [(Column, &[(&str, &str)]); 4] = [
    (Column::Balboa, &[("OMPI_MCA_pml", "ucx"), ("UCX_TLS", "rc,self")]),
    (Column::Tcp, &[("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "tcp,self")]),
    (
        Column::UcxTcp,
        &[("OMPI_MCA_pml", "ucx"), ("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo")],
    ),
    (Column::UcxShm, &[("OMPI_MCA_pml", "ucx"), ("UCX_TLS", "posix,cma,self")]),
];

/// Gives each rank a card of its own.
const OWN_CARD: &str = "UCX_NET_DEVICES=balboa$OMPI_COMM_WORLD_RANK:1 exec \"$@\"";

/// The program, compiled into a directory.
#[derive(Debug)]
pub struct Program(PathBuf);

impl Program {
    /// Compiles it.
    ///
    /// # Errors
    /// When that fails.
    pub fn new(into: &std::path::Path) -> Result<Self> {
        let (name, source) = MPI;
        std::fs::write(into.join(name), source)?;
        let program = into.join("mpi");
        let compiler = Task::new("mpicc.openmpi").with_our_environment().directory(into);
        compiler.words("-O2 -o").arg(&program).arg(name).run()?.success()?;
        Ok(Self(program))
    }

    /// Measures each way once.
    ///
    /// # Errors
    /// When a run fails, moves wrong data, or prints something else.
    pub fn measure(&self, daemon: &Daemon<'_>, figures: &mut Figures) -> Result<()> {
        for (column, variables) in WAYS {
            let rows = self.run(daemon, column, variables)?;
            let mut add = |metric: &str, sizes: &[u64], of: fn(&Row) -> f64| -> Result<()> {
                for size in sizes {
                    let row = rows.iter().find(|row| row.size == *size);
                    let row = row.with_context(|| format!("no row of {size} bytes: {rows:?}"))?;
                    figures.add(&format!("mpi_{metric}_{size}"), column, of(row));
                }
                Ok(())
            };
            add("lat", &LATENCY_SIZES, |row| row.microseconds)?;
            add("bw", &BANDWIDTH_SIZES, |row| row.megabytes)?;
        }
        Ok(())
    }

    fn run(
        &self,
        daemon: &Daemon<'_>,
        column: Column,
        variables: &[(&str, &str)],
    ) -> Result<Vec<Row>> {
        let mut task = daemon.run("mpirun.openmpi --oversubscribe").limit(LIMIT);
        for (name, value) in variables {
            task = task.env(name, value);
        }
        // It refuses root unless it is told twice, and its `ucx` transports that are no NIC's.
        for (name, value) in [
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_opal_common_ucx_tls", "any"),
            ("OMPI_MCA_opal_common_ucx_devices", "any"),
        ] {
            task = task.env(name, value);
        }
        task = task.words("-np 2");
        if column == Column::Balboa {
            // Parted by a colon the mpirun of OpenMPI 5 crashes.
            task = task.words("sh -c").arg(OWN_CARD).arg("sh");
        }
        let said = task.arg(&self.0).arg("two").run()?.success()?;
        ensure!(said.stdout.contains(", 0 wrong"), "wrong data: {said}");
        Ok(rows(&said.stdout))
    }
}

/// The figures of one message size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    size: u64,
    microseconds: f64,
    megabytes: f64,
}

fn rows(printed: &str) -> Vec<Row> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [size, microseconds, megabytes] = words.as_slice() else { return None };
        Some(Row {
            size: size.parse().ok()?,
            microseconds: microseconds.parse().ok()?,
            megabytes: megabytes.parse().ok()?,
        })
    };
    printed.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_three_numbers_are_rows() {
        let printed = "        1      5.20       0.4\nno row here\n  4096 9.00 812.5\n2 ranks, 4 checked, 0 wrong\n";
        let one = Row { size: 1, microseconds: 5.2, megabytes: 0.4 };
        assert_eq!(rows(printed), [one, Row { size: 4096, microseconds: 9.0, megabytes: 812.5 }]);
    }
}
