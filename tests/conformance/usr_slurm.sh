#!/bin/bash
# What Soperator's images have of Slurm, below one folder that is laid over /usr in their containers:
#   tests/conformance/usr_slurm.sh FOLDER SLURM PYXIS
# FOLDER has the checkout of soperator and slurm-25.11.3/ with enroot (docs/conformance.md); SLURM and
# PYXIS are clones at slurm-25-11-3-1 and v0.23.0. Debian's packages are those of slurm-25.11.3, and libpmix-dev.
set -euo pipefail
[ $# = 3 ] || { sed -n 2,5p "$0"; exit 2; }
folder=$(realpath "$1") slurm=$(realpath "$2") pyxis=$(realpath "$3")
made=$folder/usr-slurm-25.11.3
usr=$made/usr libraries=$made/usr/lib/x86_64-linux-gnu common=$folder/soperator/images/common

(
  cd "$slurm"
  CFLAGS=-O0 ./configure --prefix=/usr --sysconfdir=/etc/slurm --localstatedir=/var \
    --libdir=/usr/lib/x86_64-linux-gnu --with-pmix
  make -j"$(nproc)"
  make install DESTDIR="$made"
  make -C contribs/nss_slurm install DESTDIR="$made"
)
# As images/common/scripts/install_*_plugin.sh do.
gcc -fPIC -shared -I"$usr/include" -L"$libraries" -o "$libraries/slurm/chroot.so" \
  "$common/chroot-plugin/chroot.c" -lslurm
gcc -std=gnu99 -fPIC -DNDEBUG -I"$usr/include" -I"$usr/include/slurm" -L"$libraries" -shared \
  -I"$common/spank-nccl-debug/src" -o "$libraries/slurm/spanknccldebug.so" \
  "$common"/spank-nccl-debug/src/*.c -lslurm
make -C "$pyxis" CFLAGS="-std=gnu11 -O2 -fpic -I$usr/include"
cp "$pyxis/spank_pyxis.so" "$libraries/slurm/"
# complement_jail.sh binds it over libraries of GPUs.
echo 'int main() { return 0; }' | gcc -shared -x c -o "$libraries/libdummy.so" -
mkdir -p "$usr/lib/slurm" "$usr/share/bash-completion/completions"
for plugin in "$libraries"/slurm/*.so; do
  ln -sf "../x86_64-linux-gnu/slurm/$(basename "$plugin")" "$usr/lib/slurm/"
done
cp "$folder"/slurm-25.11.3/bin/enroot* "$usr/bin/"
cp -r "$folder/slurm-25.11.3/share/enroot" "$usr/share/"
cp -r "$folder/slurm-25.11.3/lib/enroot" "$usr/lib/"
cp "$slurm/contribs/slurm_completion_help/slurm_completion.sh" "$usr/share/bash-completion/completions/"
# complement_jail.sh binds every program of the client; those that this build lacks run nothing.
for program in scrun sh5util; do
  [ -e "$usr/bin/$program" ] || install -m 755 /bin/false "$usr/bin/$program"
done
