# make test and make demo set up everything they need, on a fresh Debian machine too.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV   ?= .venv
PY     := $(VENV)/bin/python
CMAKE   = $(VENV)/bin/cmake
WATCHED := .venv-sanitize
PACKAGES = import sysconfig; print(sysconfig.get_path('purelib'))
# The runtime of the sanitizer must come first, and the C++ library before it looks for what throws. Python itself leaks by design.
WATCH    = LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libstdc++.so)" UBSAN_OPTIONS=print_stacktrace=1 \
           ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 $(WATCHED)/bin/python
CPP    := $(shell find native -name '*.h' -o -name '*.cpp')
NATIVE := CMakeLists.txt pyproject.toml $(CPP)

.PHONY: setup build compiled test test-native test-arm wheels test-wheels sdist docs lint format check sanitize sanitize-python campaign exhaustive crash interleave simulate explore soak large resume crossing hostile fuzz ray-train trainers view-check demo bench bench-grain rivals bench-rivals golden token-packages stub clean

setup: $(VENV)/.ready

# What the library itself needs, and what builds it: enough for the demo.
$(VENV)/.begun: pyproject.toml tools/system-packages
	PYTHON=$(PYTHON) tools/system-packages
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade "pip>=24"
	$(PY) -m pip install --quiet cmake ninja $$($(PY) tools/requirements.py build plot image)
	touch $@

$(VENV)/.ready: $(VENV)/.begun
	$(PY) -m pip install --quiet $$($(PY) tools/requirements.py dev)
	touch $@

build: $(VENV)/.built

# The core is compiled once, for the module and for the C++ tests. The module has a build directory of its own: CMake remembers the
# library there, and a plain `pip install -e .` must not link it when it is old.
$(VENV)/.built: $(VENV)/.begun $(NATIVE)
	$(CMAKE) -S . -B build/native -DPENSTOCK_TESTS=ON >/dev/null
	$(CMAKE) --build build/native -j2 --target penstock_core
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -C build-dir=build/module \
	  -C cmake.define.PENSTOCK_CORE=$(CURDIR)/build/native/libpenstock_core.a -e .
	touch $@

test:
	$(MAKE) -j2 setup compiled
	$(PY) tools/test.py $(PYTEST_ARGS)

compiled: build  # the tests behind the module: both take all cores
	$(MAKE) test-native

test-native: $(VENV)/.begun
	$(CMAKE) -S . -B build/native -DPENSTOCK_TESTS=ON >/dev/null
	$(CMAKE) --build build/native -j2
	$(VENV)/bin/ctest --test-dir build/native -j2 --output-on-failure

# The C++ tests, the golden orders and the images on an emulated arm64 processor: apt-get install qemu-user-static
test-arm: $(VENV)/.wheels
	$(PY) tools/wheels.py --only cp311 --only manylinux --only aarch64
	$(PY) tools/arm_python.py -m pytest -q -p no:cacheprovider tests/order/test_golden.py tests/stream/test_golden_sequences.py \
	  tests/image
	rm -rf build/arm
	$(PY) tools/zig_toolchain.py aarch64-linux-gnu.2.17 build/arm "qemu-aarch64-static;-L;$(CURDIR)/build/arm-python/root"
	$(CMAKE) -G Ninja -S . -B build/arm --toolchain build/arm/toolchain.cmake -DPENSTOCK_TESTS=ON -DPENSTOCK_SYSTEM_CODECS=OFF \
	  -DPENSTOCK_CODEC_SOURCES=$(CURDIR)/build/codecs >/dev/null
	$(CMAKE) --build build/arm -j2
	$(VENV)/bin/ctest --test-dir build/arm --output-on-failure

# Every wheel, checked, into dist (apt-get install nasm); WHEELS='--only x86_64 --only cp312' builds some of them.
wheels: $(VENV)/.wheels
	$(PY) tools/wheels.py $(WHEELS)

# The fast tests with the wheels of dist, on every Python that is here.
test-wheels: $(VENV)/.wheels
	$(PY) tools/test_wheels.py

$(VENV)/.wheels: $(VENV)/.begun
	$(PY) -m pip install --quiet $$($(PY) tools/requirements.py --only wheels)
	touch $@

# The source package, built once into a wheel in an environment of its own; and whether a package page takes what is in dist.
sdist: $(VENV)/.begun
	$(PY) -m pip install --quiet build twine
	rm -f dist/penstock-*.tar.gz
	$(PY) -m build --sdist --outdir dist .
	$(PY) -m twine check --strict dist/*
	$(PY) -m pip wheel --quiet --no-deps --wheel-dir build/from-sdist dist/penstock-*.tar.gz

docs: setup build
	$(PY) -m tools.docs.site

lint: setup build
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(CPP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy tests/typing_calls.py
	$(VENV)/bin/lint-imports
	$(PY) tools/shape.py --check

format: setup build
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(CPP)
	$(VENV)/bin/ruff check --fix .

check: lint docs test

# The C++ tests once more: every access and every addition watched, then every shared variable.
sanitize: $(VENV)/.ready
	for kind in address,undefined thread; do \
	  $(CMAKE) -S . -B build/sanitize-$$kind -DPENSTOCK_TESTS=ON -DPENSTOCK_SANITIZE=$$kind >/dev/null && \
	  $(CMAKE) --build build/sanitize-$$kind -j2 && \
	  $(VENV)/bin/ctest --test-dir build/sanitize-$$kind --output-on-failure || exit 1; \
	done

# The native module under the first two, from Python, with damaged and hostile data. It is built into an environment of its own, which
# finds all other packages in $(VENV): a folder that a .pth file names is searched, but the editable build there, a .pth file, is not read.
$(WATCHED)/.built: $(VENV)/.ready $(NATIVE)
	test -x $(WATCHED)/bin/python || $(PY) -m venv --without-pip $(WATCHED)
	$(PY) -c "$(PACKAGES)" >$$($(WATCHED)/bin/python -c "$(PACKAGES)")/packages.pth
	$(WATCHED)/bin/python -m pip install --quiet --no-deps --no-build-isolation -C build-dir=build/sanitize-python \
	  -C cmake.build-type=RelWithDebInfo -C cmake.define.PENSTOCK_SANITIZE=address,undefined -e .
	touch $@

sanitize-python: $(WATCHED)/.built
	$(WATCH) -m tests.sanitized
	$(WATCH) -m pytest -q --hypothesis-profile=campaign -o faulthandler_timeout=7200 tests/store/test_hostile.py tests/store/test_corruption.py
	$(WATCH) -m tests.hostile.mutate_rows --count 10000
	$(WATCH) -m tests.hostile.mutate_images --count 10000
	$(WATCH) -m pytest -q tests/native tests/image tests/loader/test_native_views.py tests/loader/test_native_varying.py tests/formats/test_native.py

# Long campaigns, apart from the tests (fuzz, which needs clang, is not among them).
campaign: exhaustive crash interleave simulate explore soak large resume crossing

exhaustive: setup build $(VENV)/.trainers  # what the tests take a sample of, with everything; see tests/README.md
	$(PY) -m tests.campaign

crash: setup build
	$(PY) -m tests.crash.campaign --states 100000

interleave: setup build  # schedules of writers, gc, rebalance and readers on one bucket, with crashes and lost answers; mutants
	$(PY) -m tests.interleave.campaign --schedules 1000000

FIRST ?= 0
FIRST_LOADER ?= $(FIRST)
simulate: setup build  # the remote window, a million seeds, and loaders, 20,000, in virtual time (FIRST=n FIRST_LOADER=m go on); mutants
	$(PY) -m tests.simulate.campaign --mutants
	$(PY) -m tests.simulate.campaign --kind window --first $(FIRST) --count 1000000 --processes 2
	$(PY) -m tests.simulate.campaign --kind loader --first $(FIRST_LOADER) --count 20000 --processes 2

explore: test-native  # schedules of the thread pool and the batch ring, and mutants of both
	build/native/explore_test 500000
	$(PY) -m tests.native.explore_mutants

soak: setup build
	$(PY) -m tests.store.soak --seconds 30

large: setup build
	$(PY) -m tests.store.large

resume: setup build
	$(PY) -m tests.loader.campaign --cases 10000
	$(PY) -m tests.loader.campaign --stress 60
	$(PY) -m tests.stream.pack_resume

crossing: setup build  # every combination of streams and loaders beside a naive model, and mutants of the library
	$(PY) -m tests.crossing.campaign --cases 100000
	$(PY) -m tests.crossing.mutants

# The attackers of tests/hostile at length: servers, gc, changed files, bombs, mutants, failing system calls, interrupts.
hostile: setup build
	$(PY) -m tests.hostile.server --count 500
	$(PY) -m tests.hostile.gc_adversary --count 200
	$(PY) -m tests.hostile.file_changer --count 1500
	$(PY) -m tests.hostile.bombs
	for attack in rows states notes images losses; do $(PY) -m tests.hostile.mutate_$$attack --count 10000 || exit 1; done
	$(PY) -m tests.hostile.mutate --count 10000
	$(PY) -m tests.hostile.system_faults --stride 11
	$(PY) -m tests.hostile.interrupts --count 2000 --busy 4

# Needs clang and its runtime: apt-get install clang libclang-rt-14-dev. FUZZ=image FUZZ_SECONDS=60 takes one subject for a minute.
FUZZ         ?= chunk codec image
FUZZ_SECONDS ?= 300
fuzz: build
	@command -v clang++ >/dev/null || { echo "make fuzz needs clang: apt-get install clang libclang-rt-14-dev"; exit 1; }
	$(CMAKE) -S . -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DPENSTOCK_FUZZ=ON -DPENSTOCK_SANITIZE=address,undefined >/dev/null
	$(CMAKE) --build build/fuzz -j2 --target $(FUZZ:%=%_fuzz)
	$(PY) native/fuzz/make_seeds.py build/fuzz/corpus
	for subject in $(FUZZ); do \
	  build/fuzz/$${subject}_fuzz -max_total_time=$(FUZZ_SECONDS) build/fuzz/corpus/$$subject native/fuzz/corpus/$$subject || exit 1; \
	done

# Ray Train: two workers, then one, in the same order (the program checks itself); and a conversion from the command line.
ray-train: setup build
	$(PY) -m pytest -q tests/cluster/ray_engine.py
	$(PY) examples/train_ray.py
	rm -rf out/ray && mkdir -p out/ray
	$(PY) -c "import numpy; numpy.save('out/ray/x.npy', numpy.arange(1000))"
	$(PY) -m penstock convert --engine ray --workers 2 out/ray/x.npy out/ray/x.pen
	$(PY) -m penstock verify out/ray/x.pen

$(VENV)/.trainers: $(VENV)/.ready
	$(PY) -m pip install --quiet $$($(PY) tools/requirements.py --only trainers)
	touch $@

# Trainers in an environment of their own, which finds all other packages, torch among them, in $(VENV). None may bring another torch.
TRAINERS := .trainer-packages
TRAINER  := $(TRAINERS)/bin/python -W ignore -m
$(TRAINERS)/.ready: $(VENV)/.trainers $(VENV)/.built
	test -x $(TRAINERS)/bin/python || $(PYTHON) -m venv --without-pip $(TRAINERS)
	$(PY) -c "import sys; print('\n'.join(path for path in sys.path if path.endswith('site-packages')))" \
	  >$$($(TRAINERS)/bin/python -c "$(PACKAGES)")/dev.pth
	cp $$($(PY) -c "$(PACKAGES)")/_editable_skbc_penstock.pth $$($(TRAINERS)/bin/python -c "$(PACKAGES)")/penstock.pth  # read behind dev.pth
	echo "torch==2.13.0" >$(TRAINERS)/constraints
	$(TRAINERS)/bin/python -m pip install --quiet --no-deps torchtitan==0.3.0 trl==1.16.0 grain==0.2.18 orbax-checkpoint==0.12.8 \
	  megatron-core==0.16.1 ai2-olmo-core==3.0.0 torch_checkpointing==0.1.1 spmd_types==0.2.3 triton==3.9.0 dataclass-extensions bettermap torchft==0.2.0
	$(TRAINERS)/bin/python -m pip install --quiet -c $(TRAINERS)/constraints tyro tensorboard==2.21.0 wandb==0.31.0 einops cached-path \
	  importlib_resources mlflow-skinny==3.17.2 msgpack prometheus-client aiofiles humanize simplejson uvloop portpicker cloudpickle psutil \
	  opentelemetry-sdk opentelemetry-exporter-otlp-proto-http
	touch $@

# Every trainer: killed at a step, resumed on another number of ranks, losses compared with a run in one go (see tests/trainers/run.py).
# torchft: a replica is killed and healed. Lightning's own launcher on two processes; the Trainer of transformers, resumed, on one and
# on two; trackers; private names; docstrings of what few have installed; and a benchmark next to each trainer's own loader.
# (Accelerate, torchrun and spawn are among the tests, as forks; here they start programs of their own.)
trainers: setup build $(TRAINERS)/.ready
	$(PY) -m pytest -q --hypothesis-profile=campaign tests/trainers
	$(PY) -m tests.trainers.hf_trainer
	$(PY) -W ignore -m tests.trainers.loss_hooks
	for run in lightning accelerate hf megatron olmo titan grain torchft; do $(TRAINER) tests.trainers.$${run}_run || exit 1; done
	$(TRAINER) tests.trainers.hf_run trl
	$(TRAINER) tests.trainers.tracker_check
	$(TRAINER) tests.trainers.private_check
	$(TRAINER) pytest -q -p no:cacheprovider -o filterwarnings=ignore --doctest-modules $(addprefix src/penstock/deliver/,grain.py lightning.py olmo_core.py orbax.py torchtitan.py torchft.py)
	$(TRAINERS)/bin/python -W ignore bench/trainers.py

# The web page with hostile data, in a real browser: apt-get install chromium
view-check: setup build
	$(PY) -m tests.view.check_in_chromium

demo: build
	$(PY) -m penstock demo out/demo

bench: setup build
	mkdir -p out
	$(PY) bench/shuffle.py --json out/shuffle.json
	$(PY) bench/store.py --json out/store.json
	$(PY) bench/sources.py --json out/sources.json
	$(PY) bench/loader.py --json out/loader.json
	$(PY) bench/varying.py --json out/varying.json
	$(PY) bench/compose.py --json out/compose.json
	$(PY) bench/remote.py --json out/remote.json

bench-grain: setup build
	mkdir -p out
	$(PY) bench/shuffle.py --grain --json out/shuffle-grain.json

# The rivals in environments of their own (8 GB; FFCV needs: apt-get install libopencv-dev libturbojpeg0-dev pkg-config).
rivals: setup build
	$(PY) bench/rivals/environments.py

bench-rivals: rivals
	$(PY) bench/run.py
	$(PY) bench/run.py --docs

golden: setup build
	$(PY) -m tests.golden.make_order
	$(PY) -m tests.golden.make_packs
	$(PY) -m tests.golden.make_sequences

# The packages that own the formats of token files, of which the data sets are used and nothing else; torch is that of $(VENV).
.token-packages/.ready:
	$(PYTHON) -m venv .token-packages
	$(PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	  > $$(.token-packages/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/dev.pth
	.token-packages/bin/python -m pip install --quiet --no-deps megatron-core ai2-olmo-core dolma datatrove litdata dataclass-extensions bettermap
	.token-packages/bin/python -m pip install --quiet --no-deps mosaicml-streaming webdataset braceexpand tfrecord \
	  megatron-energon multi-storage-client s3fs xattr lark wcmatch bracex deprecation filetype
	.token-packages/bin/python -m pip install --quiet loguru humanize msgspec smart_open boto3 cached_path omegaconf crc32c protobuf \
	  zstd Brotli python-snappy xxhash catalogue cffi opentelemetry-api opentelemetry-sdk lightning-utilities
	touch $@

token-packages: setup build .token-packages/.ready
	.token-packages/bin/python -W ignore -m tests.golden.make_token_files
	.token-packages/bin/python -W ignore -m tests.golden.make_shards
	.token-packages/bin/python -W ignore -m tests.golden.make_packed_files
	$(PY) -m tests.golden.read_token_files write out/token-files
	.token-packages/bin/python -W ignore -m tests.golden.read_token_files read out/token-files
	rm -rf out/token-files

stub: build
	$(PY) -m nanobind.stubgen -q -m penstock._core -o src/penstock/_core.pyi

clean:
	rm -rf build dist out $(VENV) $(WATCHED) .grain-venv .rivals .token-packages $(TRAINERS) .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
