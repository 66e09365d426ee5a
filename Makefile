# Each target sets up what it needs; see CONTRIBUTING.md.
.PHONY: help demo demo-bond test lint bench fuzz generate

help:
	@echo "make demo       two emulated networks, a real server, one download over both"
	@echo "make demo-bond  ssh, a web radio and an HTTPS download through a relay while one network fails"
	@echo "make test       everything that continuous integration checks"
	@echo "make lint       formatting, clippy, dependencies (part of test)"
	@echo "make bench      Multiway beside curl, aria2 and kernel MPTCP; QUICK=1 for a short one"
	@echo "make fuzz       a short run of each fuzz target; SECONDS_EACH=600 for a longer one"
	@echo "make generate   manual pages, completions and API schema"

demo:
	@scripts/setup.sh
	@scripts/demo.sh

demo-bond:
	@scripts/setup.sh
	@scripts/demo.sh bond

test:
	@scripts/setup.sh
	@scripts/lint.sh
	@scripts/test.sh

lint:
	@scripts/setup.sh
	@scripts/lint.sh

bench:
	@scripts/setup.sh
	@scripts/bench.sh

fuzz:
	@scripts/setup.sh
	@scripts/fuzz.sh

generate:
	@scripts/generate.sh
