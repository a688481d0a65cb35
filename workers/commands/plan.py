"""`quietcount plan`: guarantee, noise, error and memory of every histogram, before a run."""

from rich.console import Console

from workers.commands.options import Plan
from workers.privacy.ceiling import Ceiling, check_ceiling
from workers.privacy.plan.make import make_plan
from workers.privacy.plan.text import show
from workers.runtime.printing import print_json
from workers.settings.settings import Settings


def show_plan(settings: Settings, before: Settings | None, chosen: Plan) -> int:
    """Print the plan as text, as JSON, or as its entry in the registry of DP deployments.

    Writes pages to the directory `report`, if given: the promise, and charts. The promise is
    compared with that of the settings `before`, if given.
    """
    from workers.replay.backtest.results import prepare, require

    report = chosen.report
    # Its entry has sentences of reports, whose modules import all of these.
    if chosen.registry:
        require("--registry", "yaml", "jinja2", "matplotlib")
    if report is not None:
        prepare(report, force=chosen.force)
    # Of the fullest period; None without a ceiling.
    epsilon = check_ceiling(settings)
    plan = make_plan(settings)
    if report is not None:
        from workers.replay.report.plan import write_plan_report
        from workers.replay.report.promise import write_promise

        write_plan_report(report, settings, plan)
        write_promise(report, settings, plan, epsilon, before)
    if chosen.as_json:
        print_json(plan)
    elif chosen.registry:
        from workers.replay.report.registry import entry_text

        print(entry_text(settings, plan), end="")
    else:
        show(plan, Console(highlight=False))
        ceiling = Ceiling.of(settings.privacy)
        if ceiling is not None and epsilon is not None:
            print(
                f"\nceiling: epsilon {ceiling.epsilon:.9g} at delta {ceiling.delta:.9g} for one {ceiling.unit} in "
                f"{ceiling.period};"
            )
            print(f"  these settings alone come to at most epsilon {epsilon:.9g} in it")
    return 0
