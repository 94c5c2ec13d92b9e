cd fabtests
./autogen.sh
./configure --prefix="$PWD/installed" --with-libfabric=/usr
make install
# runfabtests.sh looks for test_configs where it is run, in a directory of this name.
cp -r installed/bin test_configs "$INTO"
