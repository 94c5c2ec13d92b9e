# Without what runs at no test, and without what debuggers read, which is most of what takes long.
./autogen.sh
./configure --enable-gtest --enable-mt --disable-numa --without-java --without-go
for it in src/ucm src/ucs src/uct src/ucp src/tools/perf/lib test/gtest; do
    make -C "$it" CFLAGS=-g0 CXXFLAGS="-O0 -g0"
done
# Modules are looked for in a directory beside libucs.
mkdir -p "$INTO/lib/ucx"
cp src/uc[mstp]/.libs/libuc[mstp].so.0 "$INTO/lib"
cp src/uct/ib/.libs/libuct_ib.so.0 src/uct/ib/rdmacm/.libs/libuct_rdmacm.so.0 "$INTO/lib/ucx"
cp test/gtest/gtest "$INTO"
