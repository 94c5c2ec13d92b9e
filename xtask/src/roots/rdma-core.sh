# rdma-core over the packages of it that a root has, in their places.
mkdir build
cd build
cmake -DCMAKE_BUILD_TYPE=Release -DNO_MAN_PAGES=1 -DCMAKE_INSTALL_PREFIX=/usr \
    -DCMAKE_INSTALL_LIBDIR=lib/x86_64-linux-gnu -DCMAKE_INSTALL_SYSCONFDIR=/etc -DCMAKE_INSTALL_RUNDIR=/run \
    -DPython_EXECUTABLE=/usr/bin/python3 \
    -DCMAKE_INSTALL_PYTHON_ARCH_LIB=/usr/lib/python3/dist-packages ..
make
make install DESTDIR="$INTO"
rm -rf "$INTO/usr/share/doc/rdma-core/tests"
cp -r ../tests "$INTO/usr/share/doc/rdma-core/tests"
