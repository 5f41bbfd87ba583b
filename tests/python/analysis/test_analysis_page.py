"""The interactive part of the analysis page in a browser: selections are shown with the values in the
files."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from analysis_folder import write_analysis
from hero_moe.analysis import explorer
from hero_moe.analysis.__main__ import main

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if BROWSER is None or DRIVER is None:
    pytest.skip("chromium and chromedriver are not installed", allow_module_level=True)
webdriver = pytest.importorskip("selenium.webdriver")

from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.select import Select  # noqa: E402

EXPERTS, CHOSEN, TOKENS = 16, 2, 40


class Page:
    """The page in a browser, and its two input files."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver, self.address = driver, (folder / "report.html").as_uri()
        self.content = json.loads((folder / "analysis.json").read_text())
        self.blocks = load_file(folder / "analysis.safetensors")
        steps = {name: float(np.abs(block).max()) / 127 for name, block in self.blocks.items()}
        # Embedded int8 blocks are centered in both forms.
        self.step = steps | {
            f"coupling.{name[9:]}": step for name, step in steps.items() if name[0:9] == "centered."
        }

    def open(self, state: str = "") -> None:
        """Reloads the page with a state in the URL fragment."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.address}#{state}")

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def state(self) -> dict[str, str]:
        hash_ = self.driver.execute_script("return location.hash.slice(1)")
        return dict(part.split("=") for part in hash_.split("&") if part)

    def type(self, selector: str, value: object) -> None:
        """Replaces the value of a number field."""
        field = self.find(selector)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(str(value), Keys.ENTER)

    def over(self, selector: str, size: int, row: int, column: int) -> ActionChains:
        """Moves the mouse to a cell of a grid with `size` rows and columns."""
        canvas = self.find(selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
        width, height = self.driver.execute_script(
            "return [arguments[0].clientWidth, arguments[0].clientHeight]", canvas
        )
        cell = (width - 50) / size
        x, y = 44 + (column + 0.5) * cell, 6 + (row + 0.5) * cell
        return ActionChains(self.driver, duration=0).move_to_element_with_offset(
            canvas, round(x - width / 2), round(y - height / 2)
        )


def tolerance(weight: float, step: float) -> float:
    """The tolerance of a displayed weight: half a step of its block, and three digits."""
    return 0.501 * step + 0.005 * abs(weight)


def number(text: str) -> float:
    """The last word of a text as a number."""
    return float(text.split()[-1].replace("−", "-"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page") / "analysis"
    shape = {"experts": EXPERTS, "top_k": CHOSEN, "tokens": TOKENS, "stages": [0, 0, 0, 1, 1, 1]}
    write_analysis(folder, **shape, history="global", window=4)
    assert main([str(folder)]) == 0
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,1000"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield Page(driver, folder)
    finally:
        driver.quit()


def test_default_pair_is_shown(page: Page) -> None:
    page.open()
    pair = next(pair for pair in page.content["pairs"] if (pair["layer"], pair["predecessor"]) == (4, 3))
    assert page.content["default_pair"] == {"layer": 4, "predecessor": 3}
    facts = page.text("#pair-facts")
    assert facts.startswith(
        f"Layer 3 → layer 4, raw weights: dependency D {pair['norm'] * pair['depth_factor']:.3g}"
    )
    assert f"effective rank {pair['effective_rank']:.1f} of 16" in facts
    assert [field.get_attribute("value") for field in page.all("#source, #target")] == ["", ""]
    assert page.all("#partners *") == []


def test_cursor_shows_a_weight_and_a_click_selects_both_experts(page: Page) -> None:
    page.open("layer=6&from=3")
    block = page.blocks["coupling.6.3"]
    for target, source in ((0, 0), (5, 11), (15, 15)):
        page.over("#coupling", EXPERTS, target, source).perform()
        readout = page.text("#coupling-readout")
        assert readout.startswith(f"Source expert {source} → target expert {target}: ")
        weight = float(block[target, source])
        assert number(readout) == pytest.approx(weight, abs=tolerance(weight, page.step["coupling.6.3"]))
    page.over("#coupling", EXPERTS, 7, 2).click().perform()
    assert page.state() | {"source": "2", "target": "7"} == page.state()
    assert [field.get_attribute("value") for field in page.all("#source, #target")] == ["2", "7"]
    page.find("#clear").click()
    assert not {"source", "target"} & page.state().keys()


def test_partners_are_the_strongest_of_the_block(page: Page) -> None:
    page.open("layer=5&from=4&source=3&target=9")
    block, step = page.blocks["coupling.5.4"], page.step["coupling.5.4"]
    for selector, weights in (("#of-source", block[:, 3]), ("#of-target", block[9])):
        for place, sign in ((1, 1), (2, -1)):
            items = [item.text.split() for item in page.all(f"{selector} > div:nth-of-type({place}) li")]
            shown = {int(words[1]): number(words[2]) for words in items}
            for expert, weight in shown.items():
                assert weight == pytest.approx(weights[expert], abs=tolerance(weight, step))
            assert list(shown.values()) == sorted(shown.values(), reverse=sign > 0)
            strongest = np.sort(sign * weights)[::-1][: len(shown)]
            for weight, expected in zip(shown.values(), strongest):
                assert sign * weight == pytest.approx(expected, abs=2 * tolerance(weight, step))
            assert len(shown) == pytest.approx(min(8, int((sign * weights > 0).sum())), abs=1)
    partner = page.all("#of-source button")[1]
    expert = partner.text.split()[1]
    partner.click()
    assert page.state()["target"] == expert
    assert page.driver.switch_to.active_element.text == f"expert {expert}"  # the list was recreated


def test_pairs_are_selected_by_click_and_by_menu(page: Page) -> None:
    page.open()
    page.over("#dependency", 6, 5, 3).perform()
    assert number(page.text("#dependency-readout")) == pytest.approx(
        page.content["layer_dependency"][5][3], rel=0.005
    )
    page.over("#dependency", 6, 5, 3).click().perform()
    assert page.text("#pair-facts").startswith("Layer 4 → layer 6, raw")
    page.over("#dependency", 6, 5, 0).click().perform()  # beyond the window
    assert page.text("#dependency-readout") == "Layer 1 → layer 6: not visible"
    assert page.text("#pair-facts").startswith("Layer 4 → layer 6, raw")
    Select(page.find("#layer")).select_by_visible_text("5")
    assert page.text("#pair-facts").startswith("Layer 3 → layer 5, raw")  # the same distance
    Select(page.find("#from")).select_by_visible_text("1")
    assert page.text("#pair-facts").startswith("Layer 1 → layer 5, raw")
    assert [option.text for option in Select(page.find("#from")).options] == ["1", "2", "3", "4"]
    Select(page.find("#layer")).select_by_visible_text("2")
    assert page.text("#pair-facts").startswith("Layer 1 → layer 2, raw")


def test_keyboard_moves_the_cursor_and_selects(page: Page) -> None:
    page.open("layer=4&from=3&source=5&target=5")
    canvas = page.find("#coupling")
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_UP)
    assert page.text("#coupling-readout").startswith("Source expert 6 → target expert 4:")
    canvas.send_keys(Keys.ENTER)
    assert (page.state()["source"], page.state()["target"]) == ("6", "4")
    page.find("#dependency").send_keys(Keys.ARROW_LEFT, Keys.ENTER)
    assert page.text("#pair-facts").startswith("Layer 2 → layer 4, raw")
    page.type("#source", 12)
    assert page.state()["source"] == "12"
    page.type("#source", 99)
    assert page.state()["source"] == page.find("#source").get_attribute("value") == "12"


def test_a_token_shows_its_experts_and_weights(page: Page) -> None:
    page.open()
    paths = page.content["paths"]
    page.all("#tokens button")[17].click()
    assert page.state()["token"] == "17"
    rows = [
        [cell.text for cell in row.find_elements("css selector", "td")] for row in page.all("#token-table tr")
    ]
    assert [row[0] for row in rows] == [str(layer) for layer in range(1, 7)]
    for row, experts, weights in zip(rows, paths["experts"], paths["weights"]):
        shown = [cell.split() for cell in row[1:]]
        assert [int(words[0]) for words in shown] == experts[17]
        np.testing.assert_allclose([float(words[1]) for words in shown], weights[17], rtol=0.006)
    assert len(page.all("#token-path circle")) == 6 * CHOSEN
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert page.state()["token"] == "18"
    assert page.driver.switch_to.active_element.get_attribute("aria-pressed") == "true"


def test_an_expert_shows_its_tokens(page: Page) -> None:
    page.open("token=3")
    experts = np.array(page.content["paths"]["experts"])
    Select(page.find("#at")).select_by_visible_text("5")
    page.type("#expert", 11)
    expected = np.flatnonzero((experts[4] == 11).any(axis=1)).tolist()
    marked = [button.get_attribute("class") == "here" for button in page.all("#tokens button")]
    assert np.flatnonzero(marked).tolist() == expected
    share = page.content["expert_share"][4][11]
    assert page.text("#expert-facts") == (
        f"Expert 11 of layer 5 receives {len(expected)} of these 40 tokens (marked) and {100 * share:.2f}% "
        "of all "
        "tokens; perfect balance is 12.50%."
    )
    page.find("#token-table tr:nth-child(2) button").click()
    assert (page.state()["at"], page.state()["expert"]) == ("2", str(experts[1, 3, 0]))


def test_a_link_restores_the_selection(page: Page) -> None:
    state = {"layer": "6", "from": "5", "source": "1", "target": "8", "token": "7", "at": "3", "expert": "4"}
    page.open("&".join(f"{key}={value}" for key, value in state.items()))
    values = {key: page.find(f"#{key}").get_attribute("value") for key in state if key != "token"}
    assert values | {"token": "7"} == state
    assert page.text("#token-facts").startswith("Token 7, “")
    page.driver.execute_script("location.hash = 'layer=3&from=2&token=nonsense&expert=99'")
    assert page.text("#pair-facts").startswith("Layer 2 → layer 3, raw")
    assert page.text("#token-facts").startswith("Token 0, “")
    page.open("layer=1&from=6")
    assert page.text("#pair-facts").startswith("Layer 3 → layer 4, raw")


def test_selector_shows_centered_weights(page: Page) -> None:
    page.open("layer=6&from=3&source=2&target=9")
    raw, centered = page.find("#figure-layer-dependency"), page.find("#figure-layer-dependency-centered")
    assert raw.is_displayed() and not centered.is_displayed()
    Select(page.find("select.weights")).select_by_visible_text("centered")
    assert centered.is_displayed() and not raw.is_displayed()
    assert page.state()["weights"] == "centered"
    values = {Select(field).first_selected_option.text for field in page.all("select.weights")}
    assert values == {"centered"} and len(page.all("select.weights")) == 3
    pair = next(pair for pair in page.content["pairs"] if (pair["layer"], pair["predecessor"]) == (6, 3))
    facts = page.text("#pair-facts")
    assert (
        facts.startswith("Layer 3 → layer 6, centered weights")
        and f"norm {pair['centered_norm']:.3g}" in facts
    )
    weight, bias = float(page.blocks["centered.6.3"][9, 2]), page.content["expert_bias"][5][9]
    shown, with_bias = page.text("#coupling-readout").split("; ")
    assert number(shown) == pytest.approx(weight, abs=tolerance(weight, page.step["centered.6.3"]))
    assert with_bias.startswith("bias of expert 9: ") and number(with_bias) == pytest.approx(bias, rel=0.006)
    page.over("#dependency", 6, 4, 3).perform()
    expected = page.content["centered_layer_dependency"][4][3]
    assert number(page.text("#dependency-readout")) == pytest.approx(expected, rel=0.005)
    page.open("weights=centered&layer=6&from=3")
    assert shown_figures(page) == ["figure-layer-dependency-centered"]
    Select(page.all("select.weights")[1]).select_by_visible_text("raw")
    assert "weights" not in page.state() and shown_figures(page) == ["figure-layer-dependency"]


def shown_figures(page: Page) -> list[str]:
    """The displayed dependency figures."""
    found = page.all("#figure-layer-dependency, #figure-layer-dependency-centered")
    return [one.get_attribute("id") for one in found if one.is_displayed()]


def test_fits_a_phone(page: Page) -> None:
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        page.open("source=1&target=2")
        assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 360
        assert page.find("#coupling").size["width"] >= 300
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_colors_of_the_coupling_matrix(page: Page) -> None:
    page.open("layer=2&from=1")
    block = page.blocks["coupling.2.1"]
    script = """const canvas = document.getElementById("coupling"), ratio = canvas.width / canvas.clientWidth;
      const cell = (canvas.clientWidth - 50) / arguments[0];
      const at = (n, start) => Math.round((start + (n + 0.5) * cell) * ratio);
      const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return arguments[1].map(([row, column]) => {
        const first = 4 * (at(row, 6) * width + at(column, 44));
        return [data[first], data[first + 2]];
      });"""
    cells = [divmod(int(place), EXPERTS) for place in (block.argmax(), block.argmin())]
    (red, blue), (red_below, blue_below) = page.driver.execute_script(script, EXPERTS, cells)
    assert red > blue and blue_below > red_below


def test_no_errors_and_no_requests(page: Page) -> None:
    """Must run last: checks the logs of all tests in this file."""
    assert page.driver.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert {url.split("#")[0] for url in sent if not url.startswith("data:")} == {page.address}


def test_embedded_values_are_little_endian() -> None:
    values = np.array([1, 515], dtype=np.uint16)
    assert base64.b64decode(explorer.encoded(values)) == b"\x01\x00\x03\x02"
