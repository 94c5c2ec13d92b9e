# For each MPI a directory of programs.
# What autoconf made of it was made by another release, of which a copy's times do not tell.
autoreconf -fi
for mpi in openmpi mpich; do
    mkdir "build-$mpi" "$INTO/$mpi"
    (cd "build-$mpi" && ../configure CC="mpicc.$mpi" CXX="mpicxx.$mpi" && make)
    find "build-$mpi" -type f -name 'osu_*' -perm -1 -exec cp -t "$INTO/$mpi" {} +
done
