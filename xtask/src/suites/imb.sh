# With the data checked (-DCHECK), and without the C++ bindings, whose headers do not compile with its own flags.
for mpi in openmpi mpich; do
    mkdir "$INTO/$mpi"
    make clean
    make IMB-MPI1 IMB-RMA CC="mpicc.$mpi -DCHECK" \
        CXX="mpicxx.$mpi -DCHECK -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX"
    cp IMB-MPI1 IMB-RMA "$INTO/$mpi"
done
